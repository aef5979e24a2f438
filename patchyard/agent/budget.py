"""What one turn has spent, and when it has to stop."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from patchyard.protocol.model_items import TokenUsage
from patchyard.protocol.policies import Budgets

from .context import tokens
from .errors import BudgetExceeded

WRAP_UP_SHARE = 0.8
"""From this share of any budget on, the model is told once to finish."""


_REQUESTS, _WALL_TIME = "model requests", "seconds of wall time"
_HARD = (_REQUESTS, _WALL_TIME)
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
        for name, used, limit in self._meters(now_ms):
            if used >= limit:
                return BudgetExceeded(f"{name} ({limit:g})", hard=name in _HARD)
        return None

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
        for name, used, limit in self._meters(now_ms):
            if used >= WRAP_UP_SHARE * limit or (name == _REQUESTS and self.last_request):
                self.warned = self.wrapped_up = True
                return f"{used:g} of {limit:g} {name}"
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
        )

    def wall_time_left(self, now_ms: int) -> float | None:
        """Seconds; None: no limit."""
        limit = self.budgets.wall_time_s
        return None if limit is None else limit - self.elapsed_s(now_ms)

    def elapsed_s(self, now_ms: int) -> float:
        """Seconds since the turn's start."""
        return max(0, now_ms - self.started_ms) / 1000

    def _meters(self, now_ms: int) -> list[tuple[str, float, float]]:
        b = self.for_itself()
        meters = (
            (_REQUESTS, self.model_requests, b.model_requests),
            ("tool calls", self.tool_calls, b.tool_calls),
            ("tokens", tokens.total(self.usage), b.tokens),
            (_WALL_TIME, self.elapsed_s(now_ms), b.wall_time_s),
            ("US dollars", self.cost_usd or 0.0, b.cost_usd),
        )
        return [(name, used, limit) for name, used, limit in meters if limit is not None]
