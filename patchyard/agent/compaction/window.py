"""From the items of a full window to those of a new one. Pure."""

import json
from collections.abc import Iterable, Sequence

from patchyard.agent.context import tokens
from patchyard.agent.context.history import Call, Output
from patchyard.agent.context.marks import FRESH_WINDOW, is_user_message, tagged
from patchyard.agent.prompts import window_text
from patchyard.agent.tools.output import truncate
from patchyard.protocol.model_items import CompactionItem, FunctionCall, InputImage, InputText, Message, ModelItem, Reasoning


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
        if (cut := _cut(item, left)) is not None:
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
    plan = last_plan(items)
    parts = [window_text("fresh")] + ([f"{window_text('plan')}\n{plan}"] if plan else [])
    return tagged(FRESH_WINDOW, "\n\n".join(parts))


def last_plan(items: Sequence[ModelItem]) -> str | None:
    """The newest plan as a list, also one that an earlier window handed on; None when there is none that can be read."""
    for item in reversed(items):
        if isinstance(item, FunctionCall) and item.name == "update_plan":
            return _plan_text(item.arguments)
        if isinstance(item, Message) and (plan := _handed_on(item)) is not None:
            return plan
    return None


def has_answers(items: Iterable[ModelItem]) -> bool:
    """Whether the model has said anything in this window: without that there is nothing to leave out."""
    return any(isinstance(i, Call | Output | Reasoning) or (isinstance(i, Message) and i.role == "assistant") for i in items)


def without_oldest(items: Sequence[ModelItem], amount: int) -> list[ModelItem]:
    """The items without the oldest ones of at least so many tokens; empty when nothing would be left.

    What the model said in one response, and the outputs of its calls, go or stay together.
    """
    dropped: set[int] = set()
    calls: dict[str, int] = {}
    gone = index = 0
    while index < len(items) and (gone < amount or index in dropped):
        end = _unit_end(items, index)
        for at in range(index, end):
            item = items[at]
            if at not in dropped:
                dropped.add(at)
                gone += tokens.of_item(item)
            if isinstance(item, Call):
                calls[item.call_id] = calls.get(item.call_id, 0) + 1
        index = end
        for at in range(index, len(items)) if calls else ():
            item = items[at]
            if isinstance(item, Output) and calls.get(item.call_id):
                calls[item.call_id] -= 1
                dropped.add(at)
                gone += tokens.of_item(item)
                if not any(calls.values()):
                    break
        calls.clear()
    return [item for at, item in enumerate(items) if at not in dropped]


def _unit_end(items: Sequence[ModelItem], start: int) -> int:
    """Where that ends which the model said in one response; any other item stands alone."""
    end = start
    while end < len(items) and _by_model(items[end]):
        end += 1
    return max(end, start + 1)


def _by_model(item: ModelItem) -> bool:
    match item:
        case Message():
            return item.role == "assistant"
        case CompactionItem():
            return False
        case _:
            return not isinstance(item, Output)


def _cut(message: Message, budget: int) -> Message | None:
    """The message within so many tokens; None when there is no room for anything worth reading."""
    texts = [part.text for part in message.content if isinstance(part, InputText)]
    images = sum(isinstance(part, InputImage) for part in message.content)
    if budget < _LEAST_TOKENS or not texts:
        return None
    left_out = f"\n[{images} images left out]" if images else ""
    text = truncate("\n".join(texts), budget - _LEAST_TOKENS // 2) + left_out
    return Message(role="user", content=(InputText(text=text),))


_LEAST_TOKENS = 100


def _handed_on(message: Message) -> str | None:
    text = "".join(part.text for part in message.content if isinstance(part, InputText))
    if not text.startswith(f"<{FRESH_WINDOW}>"):
        return None
    _, found, plan = text.removesuffix(f"\n</{FRESH_WINDOW}>").partition(f"{window_text('plan')}\n")
    return plan if found else None


def _plan_text(arguments: str) -> str | None:
    try:
        plan = json.loads(arguments)
        steps = [f"- [{step['status']}] {step['step']}" for step in plan["plan"]]
    except (ValueError, LookupError, TypeError):
        return None
    explanation = plan.get("explanation")
    return "\n".join(([explanation] if isinstance(explanation, str) and explanation else []) + steps)
