"""From the items of a full window to those of a new one. Pure."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pydantic_core import from_json

from patchyard.agent.context import tokens
from patchyard.agent.context.history import Call, Output
from patchyard.agent.context.marks import FRESH_WINDOW, WINDOW_REFUSED, is_user_message, tagged
from patchyard.agent.prompts import window_text
from patchyard.agent.tools.output import truncate
from patchyard.protocol.model_items import (
    CompactionItem,
    FunctionCall,
    FunctionCallOutput,
    InputImage,
    InputText,
    Message,
    ModelItem,
    Reasoning,
)

NEW_WINDOW = "new_context_window"
"""The tool by which the model begins one."""
NOTES_TOKENS = 4_000
"""Most tokens of the notes that it takes along."""


def user_messages(items: Sequence[ModelItem], budget: int) -> tuple[Message, ...]:
    """The newest user messages within so many tokens, oldest first; the one that does not fit is cut in its middle."""
    kept: list[Message] = []
    left = budget
    for item in reversed(items):
        if not (isinstance(item, Message) and is_user_message(item)):
            continue
        size = tokens.of_item(item)
        if size <= left:
            kept.append(item)
            left -= size
            continue
        if (cut := cut_message(item, left)) is not None:
            kept.append(cut)
        break
    return tuple(reversed(kept))


def new_window(
    kept: Sequence[Message], tail: ModelItem, *, context: Sequence[ModelItem], in_turn: bool
) -> tuple[ModelItem, ...]:
    """The items that a window begins with.

    Inside a turn the context stands before the last user message, which is what the turn goes on with. Between turns there
    is none: the next turn tells it anew.
    """
    if not in_turn:
        return (*kept, tail)
    return (*kept[:-1], *context, *kept[-1:], tail)


def fresh_window_note(items: Sequence[ModelItem]) -> str:
    """What a window without a summary says about the one before, whose items are given."""
    handed_on = (("notes", last_notes(items)), ("plan", last_plan(items)))
    parts = [window_text("fresh"), *(f"{window_text(name)}\n{text}" for name, text in handed_on if text)]
    return tagged(FRESH_WINDOW, "\n\n".join(parts))


def last_plan(items: Sequence[ModelItem]) -> str | None:
    """The newest plan as a list, also one that an earlier window handed on; None when there is none that can be read."""
    for item in reversed(items):
        if isinstance(item, FunctionCall) and item.name == "update_plan":
            return _plan_text(item.arguments)
        if isinstance(item, Message) and (handed_on := _handed_on(item)) is not None:
            return handed_on.plan
    return None


def last_notes(items: Sequence[ModelItem]) -> str | None:
    """What the model noted when it last asked for a new window, also one that an earlier window handed on."""
    for item in reversed(items):
        if isinstance(item, FunctionCall) and item.name == NEW_WINDOW and (notes := _notes_text(item.arguments)) is not None:
            return notes
        if isinstance(item, Message) and (handed_on := _handed_on(item)) is not None:
            return handed_on.notes
    return None


def asks_for_window(items: Sequence[ModelItem]) -> bool:
    """Whether the model was promised a new window in this one, and no hook has refused it since."""
    promised: set[str] = set()
    for item in reversed(items):
        match item:
            case FunctionCallOutput() if item.output == window_text("asked"):
                promised.add(item.call_id)
            case FunctionCall() if item.name == NEW_WINDOW and item.call_id in promised:
                return True
            case Message(role="developer") if _text_of(item).startswith(f"<{WINDOW_REFUSED}>"):
                return False
            case _:
                pass
    return False


def before_response(items: Sequence[ModelItem], call_id: str) -> Sequence[ModelItem]:
    """The items before the response in which the model made this call."""
    at = next((at for at in range(len(items) - 1, -1, -1) if _is_call(items[at], call_id)), len(items))
    while at and by_model(items[at - 1]):
        at -= 1
    return items[:at]


def has_answers(items: Iterable[ModelItem]) -> bool:
    """Whether the model has said anything in this window: without that there is nothing to leave out."""
    return any(isinstance(i, Call | Output | Reasoning) or (isinstance(i, Message) and i.role == "assistant") for i in items)


def by_model(item: ModelItem) -> bool:
    """Whether the model itself said it."""
    match item:
        case Message():
            return item.role == "assistant"
        case CompactionItem():
            return False
        case _:
            return not isinstance(item, Output)


def cut_message(message: Message, budget: int) -> Message | None:
    """The message within so many tokens; None when there is no room for anything worth reading."""
    texts = [part.text for part in message.content if isinstance(part, InputText)]
    images = sum(isinstance(part, InputImage) for part in message.content)
    if budget < _LEAST_TOKENS or not texts:
        return None
    left_out = f"\n[{images} images left out]" if images else ""
    text = truncate("\n".join(texts), budget - _LEAST_TOKENS // 2) + left_out
    return Message(role="user", content=(InputText(text=text),))


_LEAST_TOKENS = 100


class _HandedOn(NamedTuple):
    notes: str | None
    plan: str | None


def _handed_on(message: Message) -> _HandedOn | None:
    """What the first message of a window without a summary holds."""
    text = _text_of(message)
    if not text.startswith(f"<{FRESH_WINDOW}>"):
        return None
    text, _, plan = text.removesuffix(f"\n</{FRESH_WINDOW}>").partition(f"{window_text('plan')}\n")
    _, _, notes = text.partition(f"{window_text('notes')}\n")
    return _HandedOn(notes.strip() or None, plan or None)


def _text_of(message: Message) -> str:
    return "".join(part.text for part in message.content if isinstance(part, InputText))


def _is_call(item: ModelItem, call_id: str) -> bool:
    return isinstance(item, Call) and item.call_id == call_id


def _notes_text(arguments: str) -> str | None:
    try:
        notes = from_json(arguments).get("notes")
    except (ValueError, AttributeError):
        return None
    return truncate(notes.strip(), NOTES_TOKENS) if isinstance(notes, str) and notes.strip() else None


def _plan_text(arguments: str) -> str | None:
    try:
        plan = from_json(arguments)
        steps = [f"- [{step['status']}] {step['step']}" for step in plan["plan"]]
    except (ValueError, LookupError, TypeError):
        return None
    explanation = plan.get("explanation")
    return "\n".join(([explanation] if isinstance(explanation, str) and explanation else []) + steps)
