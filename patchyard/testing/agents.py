"""Other agents that follow a script. Fails on an agent that nobody expected, and on one that nobody started."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from patchyard.agent.agents.port import AgentOrder, AgentState, AgentStatus, AgentThreadError
from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.model_items import TokenUsage

from .clock import FakeClock


@dataclass
class Child:
    """An expected agent: whose order ends with `order` answers `answer` after `seconds`; `hangs`: never."""

    order: str
    answer: str = ""
    seconds: float = 0
    hangs: bool = False
    tokens: int = 0
    cost_usd: float | None = None
    error: str | None = None
    """It can't be started, for this reason."""
    model_requests: int = 0
    tool_calls: int = 0
    queued: bool = False
    """It waits for a slot instead of running."""
    sent: list[str] = field(default_factory=list)
    """Further input that it got; each is answered at once."""
    closed: bool = False


class ScriptedAgents:
    """AgentThreads double."""

    def __init__(self, clock: FakeClock, children: Sequence[Child]) -> None:
        self.orders: list[AgentOrder] = []
        self._clock = clock
        self._expected = list(children)
        self._running: dict[str, tuple[Child, float]] = {}

    def child(self, thread_id: str) -> Child:
        """The agent that runs in this thread."""
        return self._running[thread_id][0]

    async def spawn(self, order: AgentOrder) -> None:
        """See AgentThreads."""
        await asyncio.sleep(0)
        child = next((c for c in self._expected if order.instruction.endswith(c.order)), None)
        if child is None:
            raise AssertionError(f"unexpected agent: {order.instruction!r}")
        self._expected.remove(child)
        self.orders.append(order)
        if child.error is not None:
            raise AgentThreadError(ErrorInfo.of(ErrorCode.QUEUE_UNAVAILABLE, child.error))
        self._running[order.thread_id] = (child, self._clock.monotonic() + child.seconds)

    async def send(self, thread_id: str, message: str, *, interrupt: bool) -> bool:
        """See AgentThreads."""
        starts = interrupt or not self._state(thread_id).busy
        self.child(thread_id).sent.append(f"!{message}" if interrupt else message)
        return starts

    async def states(self, thread_ids: Sequence[str]) -> Sequence[AgentState]:
        """See AgentThreads."""
        await asyncio.sleep(0)
        return [self._state(thread_id) for thread_id in thread_ids]

    async def changed(self, thread_ids: Sequence[str]) -> None:
        """See AgentThreads."""
        ends = [end for name in thread_ids for child, end in [self._running[name]] if not child.hangs]
        if not ends:
            await asyncio.Event().wait()
        await self._clock.sleep(max(0.0, min(ends) - self._clock.monotonic()))

    async def close(self, thread_id: str) -> None:
        """See AgentThreads."""
        if thread_id in self._running:
            self.child(thread_id).closed = True

    def assert_done(self) -> None:
        """Every expected agent was started, and none goes on."""
        if self._expected:
            raise AssertionError(f"agents that nobody started: {[c.order for c in self._expected]}")
        left = [child.order for child, _ in self._running.values() if not child.closed]
        if left:
            raise AssertionError(f"agents that were not closed: {left}")

    def _state(self, thread_id: str) -> AgentState:
        if thread_id not in self._running:
            return AgentState(thread_id, "unknown")
        child, end = self._running[thread_id]
        usage = TokenUsage(input_tokens=child.tokens, total_tokens=child.tokens)
        answer = child.sent[-1] if child.sent else child.answer
        done = not child.hangs and self._clock.monotonic() >= end
        busy: AgentStatus = "queued" if child.queued else "running"
        status: AgentStatus = "closed" if child.closed else "completed" if done else busy
        return AgentState(
            thread_id,
            status,
            answer if done else None,
            usage=usage,
            cost_usd=child.cost_usd,
            model_requests=child.model_requests,
            tool_calls=child.tool_calls,
        )
