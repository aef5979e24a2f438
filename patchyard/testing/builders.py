"""Short ways to write model events, responses and specifications."""

import itertools
import json
from typing import Any

from patchyard.agent.ports import ItemAdded, ItemDone, ModelEvent, ResponseCompleted, TextDelta, ToolInputDelta
from patchyard.protocol.model_items import (
    CustomToolCall,
    FunctionCall,
    Message,
    ModelItem,
    OutputText,
    Reasoning,
    SummaryText,
    TokenUsage,
)
from patchyard.protocol.ops import StartOrSteer, TextInput, TurnInput, TurnInputMode
from patchyard.protocol.tasks import NoSource, TaskSpec

_numbers = itertools.count(1)


def spec(**changes: Any) -> TaskSpec:
    """A task specification without a repository."""
    return TaskSpec(**{"repository": NoSource(), "instruction": "Fix the bug.", **changes})


def turn_input(text: str = "Fix the bug.", *, mode: TurnInputMode | None = None, **fields: Any) -> TurnInput:
    """User input of one text."""
    return TurnInput(items=(TextInput(text=text),), mode=mode or StartOrSteer(), **fields)


def usage(input_tokens: int = 10, output_tokens: int = 5) -> TokenUsage:
    """Usage that adds up."""
    return TokenUsage(input_tokens=input_tokens, output_tokens=output_tokens, total_tokens=input_tokens + output_tokens)


def completed(*, end_turn: bool | None = None, tokens: TokenUsage | None = None) -> ResponseCompleted:
    """The last event of a response."""
    return ResponseCompleted(f"resp_{next(_numbers)}", tokens or usage(), end_turn)


def message(text: str, *, item_id: str | None = None) -> Message:
    """A complete message of the model."""
    return Message(role="assistant", content=(OutputText(text=text),), id=item_id or f"msg_{next(_numbers)}")


def reasoning(*paragraphs: str) -> Reasoning:
    """A complete reasoning item."""
    summary = tuple(SummaryText(text=p) for p in paragraphs)
    return Reasoning(id=f"rs_{next(_numbers)}", summary=summary, encrypted_content="opaque")


def call(name: str, call_id: str | None = None, /, **arguments: Any) -> FunctionCall:
    """A call of a function tool."""
    return raw_call(name, json.dumps(arguments), call_id)


def raw_call(name: str, arguments: str, call_id: str | None = None) -> FunctionCall:
    """A call whose arguments are given as text."""
    number = next(_numbers)
    return FunctionCall(call_id=call_id or f"call_{number}", name=name, arguments=arguments, id=f"fc_{number}")


def shell(cmd: str, call_id: str | None = None, **arguments: Any) -> FunctionCall:
    """A call of exec_command."""
    return call("exec_command", call_id, cmd=cmd, **arguments)


def patch_call(text: str, call_id: str | None = None) -> CustomToolCall:
    """A freeform call of apply_patch."""
    number = next(_numbers)
    return CustomToolCall(call_id=call_id or f"call_{number}", name="apply_patch", input=text, id=f"ctc_{number}")


def done(item: ModelItem) -> list[ModelEvent]:
    """An item that comes at once."""
    return [ItemAdded(_empty(item)), ItemDone(item)]


def streamed(text: str, *, size: int = 4, item_id: str | None = None) -> list[ModelEvent]:
    """A message in pieces of `size` characters."""
    item = message(text, item_id=item_id)
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    return [ItemAdded(_empty(item)), *(TextDelta(item.id or "", piece) for piece in pieces), ItemDone(item)]


def typed(item: FunctionCall | CustomToolCall, *, size: int = 8) -> list[ModelEvent]:
    """A call whose arguments or input come in pieces."""
    text = item.arguments if isinstance(item, FunctionCall) else item.input
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    return [ItemAdded(_empty(item)), *(ToolInputDelta(item.id or "", piece) for piece in pieces), ItemDone(item)]


def response(*items: ModelItem, end_turn: bool | None = None, tokens: TokenUsage | None = None) -> list[ModelEvent]:
    """A whole response of these items."""
    return [*(event for item in items for event in done(item)), completed(end_turn=end_turn, tokens=tokens)]


def says(text: str, **fields: Any) -> list[ModelEvent]:
    """A whole response of one message."""
    return response(message(text), **fields)


def _empty(item: ModelItem) -> ModelItem:
    match item:
        case Message():
            return item.model_copy(update={"content": ()})
        case Reasoning():
            return item.model_copy(update={"summary": ()})
        case FunctionCall():
            return item.model_copy(update={"arguments": ""})
        case CustomToolCall():
            return item.model_copy(update={"input": ""})
        case _:
            return item
