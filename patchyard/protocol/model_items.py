"""Items of the Responses API, as they are sent to a model and come back from it.

Source of the shapes: OpenAI's public Responses API. The provider owns them, so fields that are not known here are kept.
"""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from ._model import TolerantModel


class InputText(TolerantModel):
    """Text that the model reads."""

    type: Literal["input_text"] = "input_text"
    text: str


class InputImage(TolerantModel):
    """An image that the model reads, usually a data URL."""

    type: Literal["input_image"] = "input_image"
    image_url: str
    detail: str | None = None


class OutputText(TolerantModel):
    """Text that the model wrote."""

    type: Literal["output_text"] = "output_text"
    text: str


class Refusal(TolerantModel):
    """The model's refusal to answer."""

    type: Literal["refusal"] = "refusal"
    refusal: str


ContentPart = Annotated[InputText | InputImage | OutputText | Refusal, Field(discriminator="type")]


class Message(TolerantModel):
    """A message of the user, the developer or the assistant."""

    type: Literal["message"] = "message"
    role: Literal["user", "developer", "system", "assistant"]
    content: tuple[ContentPart, ...]
    id: str | None = None
    phase: str | None = None
    """`commentary` or `final_answer` where the model says so."""


class SummaryText(TolerantModel):
    """One paragraph of a reasoning summary."""

    type: Literal["summary_text"] = "summary_text"
    text: str


class Reasoning(TolerantModel):
    """The model's reasoning: a summary to show, and the encrypted whole that goes back unchanged."""

    type: Literal["reasoning"] = "reasoning"
    id: str | None = None
    summary: tuple[SummaryText, ...] = ()
    encrypted_content: str | None = None


class FunctionCall(TolerantModel):
    """A call of a tool with JSON arguments, still as text: they may be broken."""

    type: Literal["function_call"] = "function_call"
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    namespace: str | None = None


class FunctionCallOutput(TolerantModel):
    """What the tool answered."""

    type: Literal["function_call_output"] = "function_call_output"
    call_id: str
    output: str | tuple[ContentPart, ...]
    id: str | None = None


class CustomToolCall(TolerantModel):
    """A call of a freeform tool (apply_patch): the input is plain text."""

    type: Literal["custom_tool_call"] = "custom_tool_call"
    call_id: str
    name: str
    input: str
    id: str | None = None


class CustomToolCallOutput(TolerantModel):
    """What the freeform tool answered."""

    type: Literal["custom_tool_call_output"] = "custom_tool_call_output"
    call_id: str
    output: str | tuple[ContentPart, ...]
    id: str | None = None


class CompactionItem(TolerantModel):
    """A provider's own compaction of the history: opaque, goes back unchanged."""

    type: Literal["compaction"] = "compaction"
    id: str | None = None
    encrypted_content: str | None = None


class OpaqueItem(TolerantModel):
    """An item of a kind that Patchyard does not interpret (hosted web search, …): kept and sent back unchanged."""

    type: str


_KNOWN = frozenset(
    {
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "compaction",
    }
)


def _tag(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return kind if kind in _KNOWN else "opaque"


ModelItem = Annotated[
    Annotated[Message, Tag("message")]
    | Annotated[Reasoning, Tag("reasoning")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[FunctionCallOutput, Tag("function_call_output")]
    | Annotated[CustomToolCall, Tag("custom_tool_call")]
    | Annotated[CustomToolCallOutput, Tag("custom_tool_call_output")]
    | Annotated[CompactionItem, Tag("compaction")]
    | Annotated[OpaqueItem, Tag("opaque")],
    Discriminator(_tag),
]


class TokenUsage(TolerantModel):
    """Tokens of one request, or a sum over requests. `input_tokens` includes the cached ones."""

    input_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_output_tokens: int = 0
    total_tokens: int = 0
