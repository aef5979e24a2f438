"""The script of a replay model: what the model answers, step by step. One step is one response."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from patchyard.protocol._model import WireModel

MAX_DELAY_MS = 3_600_000
"""An hour: longer is a typing error."""


class MessageStep(WireModel):
    """Text of the assistant."""

    message: str
    phase: Literal["commentary", "final_answer"] | None = None


class ReasoningStep(WireModel):
    """A reasoning summary; a blank line begins the next paragraph."""

    reasoning: str


class CallStep(WireModel):
    """A call of a function tool."""

    call: str
    arguments: dict[str, Any] | str = Field(default_factory=dict)
    """An object, or text that is sent as it is (to test broken JSON)."""
    id: str | None = None
    """The call id; None: made from thread, step and place."""


class CustomStep(WireModel):
    """A call of a freeform tool."""

    custom: str
    input: str
    id: str | None = None


_KEYS = ("message", "reasoning", "call", "custom")
TAG_PREFIX = "item:"
"""Marks union tags in the location of a validation error: they are no keys of the script."""


def _item_tag(value: Any) -> str | None:
    if isinstance(value, dict):
        return next((TAG_PREFIX + key for key in _KEYS if key in value), None)
    return next((TAG_PREFIX + key for key in _KEYS if hasattr(value, key)), None)


ScriptItem = Annotated[
    Annotated[MessageStep, Tag("item:message")]
    | Annotated[ReasoningStep, Tag("item:reasoning")]
    | Annotated[CallStep, Tag("item:call")]
    | Annotated[CustomStep, Tag("item:custom")],
    Discriminator(
        _item_tag,
        custom_error_type="script_item",
        custom_error_message="an item needs exactly one of the keys message, reasoning, call, custom",
    ),
]


class UsageSpec(WireModel):
    """Tokens that the response reports; what is left out is estimated from the request and the answer."""

    input_tokens: int | None = Field(default=None, ge=0)
    cached_input_tokens: int | None = Field(default=None, ge=0)
    output_tokens: int | None = Field(default=None, ge=0)
    reasoning_output_tokens: int | None = Field(default=None, ge=0)


class ErrorSpec(WireModel):
    """A failure. With `status` it is an HTTP answer; without, a `response.failed` event at the end of the stream."""

    status: int | None = Field(default=None, ge=400, le=599)
    code: str | None = None
    message: str = "the script asked for this error"
    type: str | None = None
    retry_after: float | None = Field(default=None, ge=0)
    """Seconds, sent as the Retry-After header."""
    body: str | None = None
    """Answer body as it is, in place of the JSON error (a proxy's HTML page, …)."""


class ExpectSpec(WireModel):
    """What the request must hold; a miss is a violation, and the step is played all the same."""

    contains: tuple[str, ...] = ()
    """Each text must occur in an item that is new since the thread's previous request."""


class Step(WireModel):
    """One response of the model."""

    items: tuple[ScriptItem, ...] = ()
    events: tuple[dict[str, Any] | str, ...] | None = None
    """Raw events in place of items: an object is sent as an event, a string as one SSE frame's data."""
    usage: UsageSpec = Field(default_factory=UsageSpec)
    delay_ms: float = Field(default=0, ge=0, le=MAX_DELAY_MS)
    """Before anything is sent."""
    token_delay_ms: float = Field(default=0, ge=0, le=MAX_DELAY_MS)
    """Before each delta."""
    error: ErrorSpec | None = None
    cut_after: int | None = Field(default=None, ge=0)
    """Close the connection after so many events."""
    hang_after: int | None = Field(default=None, ge=0)
    """Stay silent after so many events, until the client closes."""
    expect: ExpectSpec = Field(default_factory=ExpectSpec)
    end_turn: bool | None = None
    """False: the model wants to go on although it called no tool."""
    headers: dict[str, str] = Field(default_factory=dict)
    """More response headers."""
    times: int = Field(default=1, ge=1, le=10_000)
    """Play this step so often."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.events is not None and self.items:
            raise ValueError("give either items or events")
        if self.error is not None and self.error.status is not None and (self.items or self.events):
            raise ValueError("an error with a status answers in place of items: leave one of them out")
        if self.cut_after is not None and self.hang_after is not None:
            raise ValueError("give either cut_after or hang_after")
        return self


class MatchSpec(WireModel):
    """Which threads a script is for, judged at their first request."""

    contains: tuple[str, ...] | str = ()
    """All of these texts occur in the input."""
    model: str | None = None

    def texts(self) -> tuple[str, ...]:
        """The texts to look for."""
        return (self.contains,) if isinstance(self.contains, str) else self.contains


class ThreadScript(WireModel):
    """The steps of the threads that match."""

    match: MatchSpec = Field(default_factory=MatchSpec)
    steps: tuple[Step, ...] = Field(min_length=1)
    repeat_last: bool = False
    """Repeat the last step for ever; else a further request is answered 400 and is a violation."""


class Script(WireModel):
    """Everything a replay model says. `threads` are tried in order; `steps` serve the threads that match none."""

    description: str | None = None
    model: str = "gpt-5.5"
    """Name that GET /models shows."""
    steps: tuple[Step, ...] = ()
    repeat_last: bool = False
    threads: tuple[ThreadScript, ...] = ()

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.steps and not self.threads:
            raise ValueError("the script has neither steps nor threads")
        return self

    def all_threads(self) -> tuple[ThreadScript, ...]:
        """`threads`, then the fallback."""
        if not self.steps:
            return self.threads
        return (*self.threads, ThreadScript(steps=self.steps, repeat_last=self.repeat_last))
