"""The agents of a thread: limits, the record of who was started, and what they cost."""

import asyncio
import math
from collections.abc import Callable, Sequence

from patchyard.agent.approvals import first_of
from patchyard.agent.budget import Spend
from patchyard.agent.config import SessionConfig
from patchyard.agent.context import tokens
from patchyard.agent.errors import ParkTurn, ToolError
from patchyard.agent.ports import Clock
from patchyard.agent.prompts import agent_instruction
from patchyard.protocol.ids import new_id
from patchyard.protocol.model_items import TokenUsage
from patchyard.protocol.policies import Budgets
from patchyard.protocol.rollout_lines import ChildAgent

from .port import AgentOrder, AgentState, AgentThreadError, AgentThreads
from .shares import allowance, another_turn, set_aside, share_of

_SHOWN = 200
"""Characters of an order that the record keeps."""


class Agents:
    """See the module. `on_change` records the children; `busy_box`: whether something runs that a park would end."""

    def __init__(
        self,
        config: SessionConfig,
        port: AgentThreads | None,
        clock: Clock,
        *,
        children: Sequence[ChildAgent],
        on_change: Callable[[], None],
        busy_box: Callable[[], bool] = lambda: False,
    ) -> None:
        self.input_came = asyncio.Event()
        """Input for the running turn waits to be delivered: nobody waits for agents any longer."""
        self._spend: Spend | None = None
        self._turn_id: str | None = None
        self._busy_box = busy_box
        self._config = config
        self._port = port
        self._clock = clock
        self._on_change = on_change
        self._children = {child.thread_id: child for child in children}

    def serve(self, turn_id: str, spend: Spend) -> None:
        """This turn uses them now, and pays for them."""
        self._turn_id, self._spend = turn_id, spend
        self.input_came.clear()
        self._set_aside()

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
        if self._spend is None or self._turn_id is None:
            raise AssertionError("an agent outside a turn")
        budgets = share_of(self._spend.left(self._clock.now_ms()), self._spend.set_aside)
        thread_id = new_id(self._clock.now_ms())
        order = AgentOrder(
            thread_id=thread_id,
            turn_id=self._turn_id,
            instruction=agent_instruction(message),
            budgets=budgets,
            depth=self._config.agent_depth + 1,
        )
        share = allowance(budgets)
        self._note(ChildAgent(thread_id=thread_id, turn_id=self._turn_id, message=message[:_SHOWN], share=share, up_to=share))
        try:
            await self._reach.spawn(order)
        except AgentThreadError as error:
            self._closed(thread_id)
            raise ToolError(f"The agent could not be started: {error.info.message}") from error
        return thread_id

    async def send(self, thread_id: str, message: str, *, interrupt: bool) -> None:
        """Give an agent more input."""
        self._known(thread_id)
        try:
            (state,) = await self._reach.states([thread_id])
            self._count([state])
            if interrupt or not state.busy:
                self._begins_another_turn(thread_id)
            if await self._reach.send(thread_id, message, interrupt=interrupt) and state.busy and not interrupt:
                # It had just ended: the turn that begins is set aside in full, even where that leaves this one nothing.
                self._begins_another_turn(thread_id, whatever=True)
        except AgentThreadError as error:
            raise ToolError(f"The agent could not be reached: {error.info.message}") from error

    async def wait(self, thread_ids: Sequence[str], *, until_ms: int) -> Sequence[AgentState]:
        """Until one of them has nothing more to do, input came, or the time is over; the states of all.

        ParkTurn when that takes longer than the turn may hold its slot.
        """
        for thread_id in thread_ids:
            self._known(thread_id)
        began = self._clock.monotonic()
        try:
            while True:
                states = await self._reach.states(thread_ids)
                self._count(states)
                left = (until_ms - self._clock.now_ms()) / 1000
                if left <= 0 or self.input_came.is_set() or not all(state.busy for state in states):
                    return states
                hold = self._hold_s(states) - (self._clock.monotonic() - began)
                if hold <= 0:
                    raise ParkTurn("agents", until_ms, agents=tuple(thread_ids))
                pause = self._clock.sleep(min(left, hold))
                await first_of(self._reach.changed(thread_ids), pause, self.input_came.wait())
        except AgentThreadError as error:
            raise ToolError(f"The agents could not be asked: {error.info.message}") from error

    def _hold_s(self, states: Sequence[AgentState]) -> float:
        """How long a wait may keep the slot. One that an agent waits for is given up soon, or nobody could ever go on."""
        if any(state.status in ("queued", "waiting") for state in states):
            return self._config.agents_hold_s
        # A park would end the turn's commands: while all agents have slots of their own, there is no need for that.
        return math.inf if self._busy_box() else self._config.hold_time_s

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
        self._closed(thread_id)
        return state

    async def _end(self, thread_id: str) -> None:
        # Closed first: after an interrupt there is no time to lose, and what it cost can be read afterwards.
        await self._reach.close(thread_id)
        self._closed(thread_id)
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
        self._set_aside()
        self._on_change()

    def _closed(self, thread_id: str) -> None:
        self._note(self._children[thread_id].model_copy(update={"closed": True, "up_to": None}))

    def _set_aside(self) -> None:
        if self._spend is not None and self._turn_id is not None:
            self._spend.set_aside = set_aside(self.spent_in(self._turn_id))

    def _begins_another_turn(self, thread_id: str, *, whatever: bool = False) -> None:
        """Set its share aside once more. ToolError when that is not free, unless it began `whatever` there is."""
        child = self._children[thread_id]
        if self._spend is None or child.share is None:
            return
        others = set_aside(other for other in self.spent_in(child.turn_id) if other.thread_id != thread_id)
        left = Budgets(model_requests=None, wall_time_s=None) if whatever else self._spend.left(self._clock.now_ms())
        self._note(child.model_copy(update={"up_to": another_turn(child, left, others)}))

    def _count(self, states: Sequence[AgentState]) -> None:
        """Charge what they have used since the last count to the turn that runs now."""
        for state in states:
            child = self._children[state.thread_id]
            now = _counted(child, state)
            if now == child:
                continue
            if self._spend is not None and child.turn_id == self._turn_id:
                self._spend.usage = tokens.add(self._spend.usage, _less(state.usage, child.usage))
                self._spend.model_requests += now.model_requests - child.model_requests
                self._spend.tool_calls += now.tool_calls - child.tool_calls
                if state.cost_usd is not None:
                    self._spend.cost_usd = tokens.add_cost(self._spend.cost_usd, state.cost_usd - (child.cost_usd or 0.0))
            self._note(now)


def _counted(child: ChildAgent, state: AgentState) -> ChildAgent:
    """The record of an agent after a look at it. One that rests keeps nothing for itself."""
    return child.model_copy(
        update={
            "usage": state.usage,
            "cost_usd": state.cost_usd,
            "model_requests": max(child.model_requests, state.model_requests),
            "tool_calls": max(child.tool_calls, state.tool_calls),
            "up_to": child.up_to if state.busy or state.status == "unknown" else None,
        }
    )


def _less(now: TokenUsage, before: TokenUsage) -> TokenUsage:
    names = TokenUsage.model_fields
    return TokenUsage(**{name: max(0, getattr(now, name) - getattr(before, name)) for name in names})
