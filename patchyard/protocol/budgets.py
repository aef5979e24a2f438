"""The question about a budget that is used up, and which answers it takes: one rule for the service and for those who ask people."""

from typing import Literal

from ._model import WireModel
from .policies import BudgetLimits, BudgetName


class BudgetMeter(WireModel):
    """How much of a limited budget is used."""

    budget: BudgetName
    used: float
    limit: float


class BudgetRequest(WireModel):
    """A budget of the turn is used up: may it have more?"""

    type: Literal["budget_request"] = "budget_request"
    request_id: str
    budget: BudgetName
    used: float
    limit: float
    proposed: BudgetLimits
    """What accepting sets where the answer names no limit of its own."""
    meters: tuple[BudgetMeter, ...] = ()
    """All limited budgets of the turn, this one among them."""


UNITS = {
    "model_requests": "model requests",
    "tool_calls": "tool calls",
    "tokens": "tokens",
    "wall_time_s": "seconds of wall time",
    "cost_usd": "US dollars",
}
"""What a budget counts, by its name."""


def figure(value: float) -> str:
    """A used amount or a limit as people read it: 2000000, 0.25."""
    return f"{value:.0f}" if value == int(value) else f"{value:.6g}"


def why_not(request: BudgetRequest, limits: BudgetLimits) -> str | None:
    """Why these limits can't be set in answer to the question; None: they can."""
    meters = {meter.budget: meter for meter in request.meters}
    for name, limit in limits.named().items():
        meter = meters.get(name)
        if meter is None:
            return f"the turn has no limit of {UNITS[name]} that could be raised"
        if limit <= meter.used:
            return f"a limit of {figure(limit)} {UNITS[name]} is used up already ({figure(meter.used)}); name a higher one"
        if limit < meter.limit:
            return f"the limit of {figure(meter.limit)} {UNITS[name]} can be raised, not lowered to {figure(limit)}"
    return None
