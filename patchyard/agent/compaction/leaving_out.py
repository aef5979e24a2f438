"""What is left out of a compaction's request when it does not fit: the oldest first, and when nothing would be left, parts. Pure."""

from collections.abc import Sequence

from patchyard.agent.context import tokens
from patchyard.agent.context.history import Call, Output
from patchyard.agent.tools.output import truncate
from patchyard.protocol.model_items import Message, ModelItem

from .window import by_model, cut_message

LEAST_TOKENS = 200
"""Nothing is shortened below this."""


def with_less(items: Sequence[ModelItem], amount: int) -> list[ModelItem]:
    """The items with at least so many tokens less, if possible; empty when no more can be left out."""
    return without_oldest(items, amount) or shortened(items)


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
    while end < len(items) and by_model(items[end]):
        end += 1
    return max(end, start + 1)


def shortened(items: Sequence[ModelItem]) -> list[ModelItem]:
    """The items, all outputs and input messages at most half as long as the longest of them; empty when all are short already.

    For a window that is one step with more outputs than fit, or one message.
    """
    longest = max((tokens.of_item(item) for item in items if _can_be_cut(item)), default=0)
    limit = longest // 2
    if limit < LEAST_TOKENS:
        return []
    return [_cut(item, limit) if _can_be_cut(item) and tokens.of_item(item) > limit else item for item in items]


def _can_be_cut(item: ModelItem) -> bool:
    return isinstance(item, Output) or (isinstance(item, Message) and item.role == "user")


def _cut(item: ModelItem, limit: int) -> ModelItem:
    match item:
        case Message():
            return cut_message(item, limit) or item
        case _ if isinstance(item, Output):
            texts = (
                [item.output] if isinstance(item.output, str) else [getattr(p, "text", "[image left out]") for p in item.output]
            )
            return item.model_copy(update={"output": truncate("\n".join(texts), limit - LEAST_TOKENS // 4)})
        case _:
            return item
