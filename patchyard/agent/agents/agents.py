"""The agents of a thread: limits, the record of who was started, and what they cost."""

import asyncio
from collections.abc import Callable, Sequence

from patchyard.agent.approvals import first_of
from patchyard.agent.budget import Spend
from patchyard.agent.config import SessionConfig
from patchyard.agent.context import tokens
from patchyard.agent.errors import ToolError
from patchyard.agent.ports import Clock
from patchyard.agent.prompts import agent_instruction
from patchyard.protocol.ids import new_id
from patchyard.protocol.model_items import TokenUsage
from patchyard.protocol.rollout_lines import ChildAgent

from .port import AgentOrder, AgentState, AgentThreadError, AgentThreads

_SHOWN = 200
"""Characters of an order that the record keeps."""


class Agents:
    """See the module. `on_change` records the children; `spend` is the running turn's and is set by it."""

    def __init__(
        self,
        config: SessionConfig,
        port: AgentThreads | None,
        clock: Clock,
        *,
        children: Sequence[ChildAgent],
        on_change: Callable[[], None],
    ) -> None:
        self.spend: Spend | None = None
        self.turn_id: str | None = None
        self._config = config
        self._port = port
        self._clock = clock
        self._on_change = on_change
        self._children = {child.thread_id: child for child in children}

    @property
    def offered(self) -> bool:
        """Whether this thread's agent may start others."""
        return self._port is not None and self._config.agent_depth < self._config.agents_depth_limit

    def children(self) -> tuple[ChildAgent, ...]:
        """All that were started, for the record."""
        return tuple(self._children.values())

    def open_ids(self) -> list[str]:
        """Those that were not closed, oldest first."""
        return [child.thread_id for child in self._children.values() if not child.closed]

    def spent_in(self, turn_id: str) -> tuple[ChildAgent, ...]:
        """Those that a turn pays for."""
        return tuple(child for child in self._children.values() if child.turn_id == turn_id)

    # --- what the tools do; ToolError in plain words

    async def spawn(self, message: str) -> str:
        """Start an agent; its id."""
        if len(self.open_ids()) >= self._config.agents_limit:
            raise ToolError(
                f"{self._config.agents_limit} agents are open already. Close one with close_agent when you have its answer."
            )
        if self.spend is None or self.turn_id is None:
            raise AssertionError("an agent outside a turn")
        thread_id = new_id(self._clock.now_ms())
        order = AgentOrder(
            thread_id=thread_id,
            instruction=agent_instruction(message),
            budgets=self.spend.left(self._clock.now_ms()),
            depth=self._config.agent_depth + 1,
        )
        self._note(ChildAgent(thread_id=thread_id, turn_id=self.turn_id, message=message[:_SHOWN]))
        try:
            await self._reach.spawn(order)
        except AgentThreadError as error:
            self._note(self._children[thread_id].model_copy(update={"closed": True}))
            raise ToolError(f"The agent could not be started: {error.info.message}") from error
        return thread_id

    async def send(self, thread_id: str, message: str, *, interrupt: bool) -> None:
        """Give an agent more input."""
        self._known(thread_id)
        try:
            await self._reach.send(thread_id, message, interrupt=interrupt)
        except AgentThreadError as error:
            raise ToolError(f"The agent could not be reached: {error.info.message}") from error

    async def wait(self, thread_ids: Sequence[str], *, timeout_s: float) -> Sequence[AgentState]:
        """Until one of them has nothing more to do, or the time is over; the states of all."""
        for thread_id in thread_ids:
            self._known(thread_id)
        until = self._clock.monotonic() + timeout_s
        try:
            while True:
                states = await self._reach.states(thread_ids)
                self._count(states)
                left = until - self._clock.monotonic()
                if left <= 0 or not all(state.busy for state in states):
                    return states
                await first_of(self._reach.changed(thread_ids), self._clock.sleep(left))
        except AgentThreadError as error:
            raise ToolError(f"The agents could not be asked: {error.info.message}") from error

    async def close(self, thread_id: str) -> AgentState:
        """End an agent for good; how it was doing."""
        self._known(thread_id)
        try:
            return await self._close(thread_id)
        except AgentThreadError as error:
            raise ToolError(f"The agent could not be closed: {error.info.message}") from error

    # --- the end of a turn

    async def close_all(self, *, grace_s: float | None) -> None:
        """Agents do not outlive the turn that pays for them. Never raises; who can't be reached is closed with the next turn."""
        open_ids = self.open_ids()
        if not open_ids or self._port is None:
            return
        closing = asyncio.gather(*(self._end(thread_id) for thread_id in open_ids), return_exceptions=True)
        if grace_s is None:
            await closing
        else:
            await first_of(asyncio.wait([closing]), self._clock.sleep(grace_s))
            closing.cancel()
            await asyncio.wait([closing])

    async def _close(self, thread_id: str) -> AgentState:
        (state,) = await self._reach.states([thread_id])
        self._count([state])
        await self._reach.close(thread_id)
        self._note(self._children[thread_id].model_copy(update={"closed": True}))
        return state

    async def _end(self, thread_id: str) -> None:
        # Closed first: after an interrupt there is no time to lose, and what it cost can be read afterwards.
        await self._reach.close(thread_id)
        self._note(self._children[thread_id].model_copy(update={"closed": True}))
        self._count(await self._reach.states([thread_id]))

    # --- the record

    @property
    def _reach(self) -> AgentThreads:
        if self._port is None:
            raise ToolError("This agent can't start or use other agents.")
        return self._port

    def _known(self, thread_id: str) -> None:
        child = self._children.get(thread_id)
        if child is None or child.closed:
            known = ", ".join(self.open_ids()) or "none"
            raise ToolError(f"There is no open agent {thread_id}. Open agents: {known}.")

    def _note(self, child: ChildAgent) -> None:
        self._children[child.thread_id] = child
        self._on_change()

    def _count(self, states: Sequence[AgentState]) -> None:
        """Charge what they have used since the last count to the turn that runs now."""
        for state in states:
            child = self._children[state.thread_id]
            if state.usage == child.usage and state.cost_usd == child.cost_usd:
                continue
            if self.spend is not None and child.turn_id == self.turn_id:
                self.spend.usage = tokens.add(self.spend.usage, _less(state.usage, child.usage))
                if state.cost_usd is not None:
                    self.spend.cost_usd = tokens.add_cost(self.spend.cost_usd, state.cost_usd - (child.cost_usd or 0.0))
            self._note(child.model_copy(update={"usage": state.usage, "cost_usd": state.cost_usd}))


def _less(now: TokenUsage, before: TokenUsage) -> TokenUsage:
    names = TokenUsage.model_fields
    return TokenUsage(**{name: max(0, getattr(now, name) - getattr(before, name)) for name in names})
