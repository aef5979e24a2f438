"""What one turn has spent, and when it has to stop."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from patchyard.protocol.budgets import UNITS, BudgetMeter, figure
from patchyard.protocol.model_items import TokenUsage
from patchyard.protocol.policies import BudgetLimits, BudgetName, Budgets

from .context import tokens
from .errors import BudgetExceeded

WRAP_UP_SHARE = 0.8
"""From this share of any budget on, the model is told once to finish."""


_HARD = (BudgetName.MODEL_REQUESTS, BudgetName.WALL_TIME_S)
"""Budgets that are never passed by a step. The others can be known to be used up only after the step that did it."""


@dataclass
class Spend:
    """Sums of one turn, over all its segments."""

    budgets: Budgets
    started_ms: int
    """Since when the wall time counts."""
    model_requests: int = 0
    tool_calls: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)
    cost_usd: float | None = None
    warned: bool = False
    """The wrap-up message was given in this context window."""
    wrapped_up: bool = False
    """It was given in this turn."""
    set_aside: Mapping[str, float] = field(default_factory=dict)
    """By the name of the budget: what agents that work for the turn may still use."""
    unpriced: bool = False
    """People were told that a budget of money can't be held."""

    def add_response(self, usage: TokenUsage) -> None:
        """A response was counted by the provider."""
        self.usage = tokens.add(self.usage, usage)

    def check(self, now_ms: int) -> None:
        """Raise BudgetExceeded when a budget is used up."""
        if (exceeded := self.exceeded(now_ms)) is not None:
            raise exceeded

    def exceeded(self, now_ms: int) -> BudgetExceeded | None:
        """The budget that is used up."""
        for meter in self._own_meters(now_ms):
            if meter.used >= meter.limit:
                return BudgetExceeded(f"{UNITS[meter.budget]} ({figure(meter.limit)})", hard=meter.budget in _HARD)
        return None

    def spent(self, now_ms: int) -> list[BudgetMeter]:
        """The budgets that are used up: by the turn itself, or since the rest is set aside for its agents."""
        over = {meter.budget for meter in self._own_meters(now_ms) if meter.used >= meter.limit}
        return [meter for meter in self.meters(now_ms) if meter.budget in over]

    def proposal(self, given: Budgets, now_ms: int) -> BudgetLimits:
        """Limits for those that are used up: as much again as the turn was `given`, on top of what is used."""
        limits: dict[str, float] = {}
        for meter in self.spent(now_ms):
            again = getattr(given, meter.budget.value) or meter.limit
            whole = meter.budget is not BudgetName.COST_USD
            used = max(meter.used, meter.limit)
            used = math.ceil(used) if whole else math.ceil(used * 100) / 100
            limits[meter.budget.value] = used + again
        return BudgetLimits.model_validate(limits)

    def raise_limits(self, limits: BudgetLimits) -> None:
        """A person gave the turn more. What the model was told of the old limits does not hold any more."""
        self.budgets = self.budgets.raised(limits)
        self.warned = self.wrapped_up = False

    def did_not_work(self, ms: int) -> None:
        """So long the turn only waited for a person: that is no wall time."""
        self.started_ms += ms

    def new_window(self) -> None:
        """What the model was told is gone from its input."""
        self.warned = False

    @property
    def last_request(self) -> bool:
        """Whether only one model request is left."""
        limit = self.for_itself().model_requests
        return limit is not None and self.model_requests > 0 and limit - self.model_requests <= 1

    def nearly_spent(self, now_ms: int) -> str | None:
        """Words for the first budget that is at 80 %, or whose last request comes next; None: all is well, or it was said."""
        if self.warned:
            return None
        for meter in self._own_meters(now_ms):
            last = meter.budget is BudgetName.MODEL_REQUESTS and self.last_request
            if meter.used >= WRAP_UP_SHARE * meter.limit or last:
                self.warned = self.wrapped_up = True
                return f"{figure(meter.used)} of {figure(meter.limit)} {UNITS[meter.budget]}"
        return None

    def for_itself(self) -> Budgets:
        """The turn's budgets without what is set aside for its agents."""
        limits = {name: getattr(self.budgets, name) for name in self.set_aside}
        kept = {name: max(0, limit - self.set_aside[name]) for name, limit in limits.items() if limit is not None}
        return self.budgets.model_copy(update=kept)

    def left(self, now_ms: int) -> Budgets:
        """What an agent that this turn pays for may spend: the rest of the turn's budgets."""
        b = self.budgets
        return Budgets(
            model_requests=None if b.model_requests is None else max(1, b.model_requests - self.model_requests),
            tool_calls=None if b.tool_calls is None else max(1, b.tool_calls - self.tool_calls),
            tokens=None if b.tokens is None else max(1, b.tokens - tokens.total(self.usage)),
            wall_time_s=None if b.wall_time_s is None else max(1.0, b.wall_time_s - self.elapsed_s(now_ms)),
            cost_usd=None if b.cost_usd is None else max(1e-6, b.cost_usd - (self.cost_usd or 0.0)),
            when_spent="end",
        )

    def wall_time_left(self, now_ms: int) -> float | None:
        """Seconds; None: no limit."""
        limit = self.budgets.wall_time_s
        return None if limit is None else limit - self.elapsed_s(now_ms)

    def elapsed_s(self, now_ms: int) -> float:
        """Seconds since the turn's start."""
        return max(0, now_ms - self.started_ms) / 1000

    def meters(self, now_ms: int) -> list[BudgetMeter]:
        """All budgets that have a limit. What is set aside for agents counts as used."""
        used = {name: amount + self.set_aside.get(name.value, 0) for name, amount in self._used(now_ms).items()}
        metered = _metered(used, self.budgets)
        return [BudgetMeter(budget=meter.budget, used=meter.used, limit=meter.limit) for meter in metered]

    def _own_meters(self, now_ms: int) -> "list[_Meter]":
        """The turn's own part of them."""
        return _metered(self._used(now_ms), self.for_itself())

    def _used(self, now_ms: int) -> dict[BudgetName, float]:
        return {
            BudgetName.MODEL_REQUESTS: self.model_requests,
            BudgetName.TOOL_CALLS: self.tool_calls,
            BudgetName.TOKENS: tokens.total(self.usage),
            BudgetName.WALL_TIME_S: self.elapsed_s(now_ms),
            BudgetName.COST_USD: self.cost_usd or 0.0,
        }


class _Meter(NamedTuple):
    budget: BudgetName
    used: float
    limit: float


def _metered(used: Mapping[BudgetName, float], budgets: Budgets) -> list[_Meter]:
    limits = {name: getattr(budgets, name.value) for name in BudgetName}
    return [_Meter(name, used[name], limit) for name, limit in limits.items() if limit is not None]
