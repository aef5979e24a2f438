"""Everything that can go wrong in the agent core.

AgentError                 base; carries an ErrorInfo
├── TurnError              ends the turn as failed
│   ├── BudgetExceeded     a spend budget is used up
│   └── ContextOverflow    a request did not fit into the model's context window
└── ToolError              an output that the model reads; the turn goes on

ParkTurn and StopTurn are no errors: they tell the turn to wait without a slot, or to end because a person said so;
CompactionRefused: because a hook did not allow the compaction that it needs.
LeaseLost (ports) passes through everything: whoever sees it stops and writes nothing.
"""

from typing import Literal

from patchyard.protocol.errors import ErrorCode, ErrorInfo


class AgentError(Exception):
    """Base of the agent core's errors."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info


class TurnError(AgentError):
    """The turn can't go on and ends as failed with this error."""


class BudgetExceeded(TurnError):
    """A spend budget of the turn is used up. `hard`: not even a last step to wrap up is left."""

    def __init__(self, what: str, *, hard: bool = True) -> None:
        self.hard = hard
        super().__init__(
            ErrorInfo.of(
                ErrorCode.BUDGET_EXCEEDED,
                f"The turn's budget is used up: {what}. The work so far is kept; raise the budget or split the task.",
            )
        )


class ContextOverflow(TurnError):
    """The model said that the request does not fit. Ends the turn when compaction does not help."""


class ToolError(AgentError):
    """A tool could not do what was asked. The message is written for the model."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorInfo.of(ErrorCode.INVALID_REQUEST, message))


ParkReason = Literal["approval", "user_input", "budget", "retry_time", "agents"]


class ParkTurn(Exception):
    """The turn has to wait longer than it may hold its slot."""

    def __init__(self, reason: ParkReason, until_ms: int | None, *, agents: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.reason: ParkReason = reason
        self.until_ms = until_ms
        self.agents = agents
        """Agents whose end wakes it."""

    def joined(self, other: "ParkTurn") -> "ParkTurn":
        """A wait for whichever comes first, under this one's reason."""
        times = [until for until in (self.until_ms, other.until_ms) if until is not None]
        return ParkTurn(self.reason, min(times, default=None), agents=self.agents + other.agents)


class StopTurn(Exception):
    """A person answered a question with `cancel`: the turn ends as interrupted."""


class CompactionRefused(StopTurn):
    """A hook did not allow the compaction. The history is as it was."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
