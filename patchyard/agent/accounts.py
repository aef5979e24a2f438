"""Books what a model's answer cost, in the turn, the thread and the record; the same for answers of every kind."""

from collections.abc import Mapping
from typing import Any

from patchyard.protocol.events import TokenCount, Warning_
from patchyard.protocol.rollout_lines import ModelRequestRecord

from .budget import Spend
from .context import tokens
from .ports import ResponseCompleted
from .thread import Thread

_UNPRICED = (
    "No price is configured for the model {model}: what it costs is not counted, and the budget of {budget:g} US dollars does not "
    "hold. Set PATCHYARD_MODEL_PRICE_INPUT and _OUTPUT, or `prices` of its provider."
)


def book_attempt(thread: Thread, spend: Spend, record: ModelRequestRecord) -> None:
    """An attempt ended, well or badly."""
    thread.cost_usd = tokens.add_cost(thread.cost_usd, record.cost_usd)
    spend.cost_usd = tokens.add_cost(spend.cost_usd, record.cost_usd)
    thread.journal.post(record)
    if record.usage is not None and record.cost_usd is None and spend.budgets.cost_usd is not None and not spend.unpriced:
        spend.unpriced = True
        thread.journal.post(Warning_(message=_UNPRICED.format(model=record.model, budget=spend.budgets.cost_usd)))


def book_response(
    thread: Thread, spend: Spend, response: ResponseCompleted, *, model: str, rate_limits: Mapping[str, Any] | None
) -> None:
    """A response is complete."""
    thread.usage = tokens.add(thread.usage, response.usage)
    spend.model_requests += 1
    spend.add_response(response.usage)
    thread.journal.post(
        TokenCount(
            last=response.usage,
            total=thread.usage,
            model_context_window=thread.config.profile(model).context_window,
            cost_usd=thread.cost_usd,
            rate_limits=None if rate_limits is None else dict(rate_limits),
        )
    )
