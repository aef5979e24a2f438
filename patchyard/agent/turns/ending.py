"""How a turn ends: everything open is closed, then one terminal record. Used once the turn can't be stopped any more."""

import asyncio
from collections.abc import Sequence
from typing import Literal

from patchyard.agent.approvals import first_of
from patchyard.agent.context.history import ABORTED, Call, output_for
from patchyard.agent.errors import ParkTurn
from patchyard.protocol.errors import ErrorInfo
from patchyard.protocol.events import DurableMsg, ItemCompleted, OpRejected, TurnFailed, TurnInterrupted, TurnParked, Warning_
from patchyard.protocol.items import Item, ItemStatus, PlanItem, SubAgentItem, UserMessageItem
from patchyard.protocol.rollout_lines import LinePayload
from patchyard.protocol.tasks import TurnStatus

from . import records
from .state import TurnState
from .step import Step


class Ending:
    """The ends of one turn but the good one, which is the loop's."""

    def __init__(self, state: TurnState) -> None:
        self._state = state
        self._thread = state.thread
        self._journal = state.thread.journal
        self._clock = state.thread.ports.clock

    async def interrupted(self, step: Step | None, *, note: bool = True) -> Literal["interrupted"]:
        """A person said stop. Steers that were not delivered are dropped and named. `note`: the model is told of it."""
        state = self._state
        await self._close(step, records.ABORTED_BY_USER)
        started = [state.id] if state.submission is not None and not state.input_recorded else []
        told = []
        if note and state.kind != "compact":
            told.append(records.interrupted_note(kept=self._thread.processes.kept_running))
        self._journal.post(*state.input_records(), *told)
        for asked in state.asked_compactions():
            state.later.remove(asked)
            answer = OpRejected(op="compact", message="the turn was interrupted before it could be done")
            self._journal.post(answer, submission_id=asked.id, consumed=[asked.id])
        events = await self._last_word(TurnStatus.INTERRUPTED, None, limit_s=self._thread.config.interrupt_grace_s)
        while True:
            answers = state.answers_to_interrupts(applied=True)
            dropped = tuple(steer.id for steer in state.steers)
            terminal = TurnInterrupted(**state.sums(), dropped_submission_ids=dropped)
            if await state.finish(*events, terminal, consumed=[*started, *dropped], answers=answers):
                for _ in dropped:
                    state.steers.popleft()
                return "interrupted"

    async def failed(self, step: Step | None, error: ErrorInfo, *, why: str = records.STOPPED) -> Literal["failed"]:
        """The turn can't go on. Steers that were not delivered are kept for the next turn."""
        state = self._state
        await self._close(step, why)
        own: list[str] = []
        if state.submission is not None and not state.input_recorded:
            if state.takes_input:
                self._journal.post(*state.input_records(), submission_id=state.id, consumed=[state.id])
            else:
                own.append(state.id)
        events = await self._last_word(TurnStatus.FAILED, error, limit_s=None)
        while True:
            await state.deliver_steers()
            answers = state.answers_to_interrupts(applied=False)
            terminal = TurnFailed(error=error, **state.sums())
            if await state.finish(*events, terminal, consumed=own, answers=answers):
                break
        return "failed"

    async def suspended(self, step: Step | None) -> Literal["suspended"]:
        """Another worker goes on: outputs that are there are kept, the rest stays open."""
        if step is not None:
            await step.runner.cancel()
        await self._journal.flush()
        return "suspended"

    async def park(self, parked: ParkTurn) -> Literal["parked"]:
        """Wait without lease, slot and box. Commands that run in the background end here."""
        await self._thread.processes.kill_all(grace_s=self._thread.config.interrupt_grace_s)
        event = TurnParked(reason=parked.reason, until=parked.until_ms)
        await self._journal.park(event, turn_id=self._state.id, until_ms=parked.until_ms, awaits=parked.agents)
        return "parked"

    # --- closing

    async def out_of_time(self, step: Step | None) -> None:
        """The wall time is over and a person is asked for more: the step ends here, the turn and its agents do not."""
        await self._close(step, records.OUT_OF_TIME, agents=False)
        await self._journal.flush()

    async def _close(self, step: Step | None, why: str, *, agents: bool = True) -> None:
        """Stop what runs, answer open calls, close open items and questions."""
        grace = self._thread.config.interrupt_grace_s
        if self._state.keep_background:
            self._thread.processes.keep_sessions()
        killing = asyncio.create_task(self._thread.processes.kill_all(grace_s=grace, kept=False))
        if step is not None:
            await step.runner.abort(why)
        if agents:
            await self._thread.agents.close_all(grace_s=grace)
        await killing
        for call in self._thread.history.open_calls():
            self._journal.post(output_for(call, why))
        self._thread.questions.void_all()
        self.close_items()

    def close_items(self) -> None:
        """Complete every open item as interrupted."""
        for item in list(self._journal.open_items.values()):
            self._journal.post(self._interrupted(item))

    def leftovers(self) -> Sequence[LinePayload]:
        """The ends of what an earlier turn left open: its own was written without us (an interrupt while it was parked)."""
        calls = [output_for(call, ABORTED) for call in self._thread.history.open_calls()]
        return [*calls, *(self._interrupted(item) for item in self._journal.open_items.values())]

    def _interrupted(self, item: Item) -> ItemCompleted:
        ended = (
            item if isinstance(item, UserMessageItem | PlanItem) else item.model_copy(update={"status": ItemStatus.INTERRUPTED})
        )
        return ItemCompleted(item=ended, completed_at=self._clock.now_ms())

    def close_lost_calls(self, *, everything_waited: bool) -> Sequence[Call]:
        """After a recovery: answer the calls whose fate is not known; the others are returned, to be run now.

        A call that waits for a person has not run, one that waits for agents has changed nothing. In a parked turn that is true
        of every open call.
        """
        waiting = [call for call in self._thread.history.open_calls() if everything_waited or self._waits(call)]
        kept = {call.call_id for call in waiting}
        for call in self._thread.history.open_calls():
            if call.call_id not in kept:
                self._journal.post(output_for(call, records.RESTARTED))
        for item in [item for item in self._journal.open_items.values() if item.id not in kept]:
            self._journal.post(self._interrupted(item))
        return waiting

    def _waits(self, call: Call) -> bool:
        item = self._journal.open_items.get(call.call_id)
        waits_for_agents = isinstance(item, SubAgentItem) and item.until is not None
        return waits_for_agents or self._thread.questions.find(call.call_id) is not None

    async def _last_word(self, status: TurnStatus, error: ErrorInfo | None, *, limit_s: float | None) -> Sequence[DurableMsg]:
        """The gate's events for this end. After an interrupt nobody waits long for them."""
        if self._state.kind == "compact":
            return ()
        work = asyncio.ensure_future(self._thread.ports.gate.at_end(self._state.outcome(status, error)))
        if limit_s is None:
            return await work
        await first_of(asyncio.wait([work]), self._clock.sleep(limit_s))
        if work.done():
            return work.result()
        work.cancel()
        await asyncio.wait([work])
        return [
            Warning_(message="The turn was interrupted before its result could be stored; the work tree of this turn is lost.")
        ]
