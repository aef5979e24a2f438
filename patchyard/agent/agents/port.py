"""What sub-agents need from outside: other threads. Implemented by workers over the queue; double in testing.

All methods raise AgentThreadError when the other thread can't be reached now.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from patchyard.protocol.errors import ErrorInfo
from patchyard.protocol.model_items import TokenUsage
from patchyard.protocol.policies import Budgets

AgentStatus = Literal["unknown", "queued", "running", "waiting", "completed", "failed", "interrupted", "closed"]
"""unknown: no such thread (yet); waiting: parked for a person or a time; the last four: it does nothing any more."""

BUSY: frozenset[AgentStatus] = frozenset({"queued", "running", "waiting"})


class AgentThreadError(Exception):
    """The other thread could not be asked; the message is fit for the model."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info


@dataclass(frozen=True)
class AgentOrder:
    """A new agent."""

    thread_id: str
    """Chosen by the parent and recorded before, so that a repeated order is the same agent."""
    turn_id: str
    """The parent's turn that starts it: it ends with that turn at the latest."""
    instruction: str
    budgets: Budgets
    depth: int
    """1: child of a task's own agent."""


@dataclass(frozen=True)
class AgentState:
    """How an agent is doing."""

    thread_id: str
    status: AgentStatus
    last_message: str | None = None
    error: str | None = None
    usage: TokenUsage = field(default_factory=TokenUsage)
    """Of its whole thread so far, with agents of its own; the three that follow too."""
    cost_usd: float | None = None
    model_requests: int = 0
    tool_calls: int = 0

    @property
    def busy(self) -> bool:
        """Whether more is to come by itself."""
        return self.status in BUSY


class AgentThreads(Protocol):
    """Other threads of the tenant, as far as an agent may use them. See the module for errors."""

    async def spawn(self, order: AgentOrder) -> None:
        """Start an agent on a copy of the parent's work tree as it is now. Repeating an order is harmless."""
        ...

    async def send(self, thread_id: str, message: str, *, interrupt: bool) -> bool:
        """Give an agent input: steers its turn, or starts one (True). `interrupt` ends its turn first."""
        ...

    async def states(self, thread_ids: Sequence[str]) -> Sequence[AgentState]:
        """How they are doing now, in the same order."""
        ...

    async def changed(self, thread_ids: Sequence[str]) -> None:
        """Return once one of them may not be busy any more, or has no slot any more. Cancel-safe."""
        ...

    async def close(self, thread_id: str) -> None:
        """End its turn and close its thread. Twice is harmless."""
        ...
