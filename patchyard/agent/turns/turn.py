"""A turn: steps until the model is done, and the one way in which it ends."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from patchyard.agent.budget import Spend
from patchyard.agent.context.history import Call
from patchyard.agent.context.surroundings import look, tell
from patchyard.agent.errors import BudgetExceeded, ParkTurn, StopTurn, TurnError
from patchyard.agent.ports import LeaseLost
from patchyard.agent.thread import Thread
from patchyard.agent.tools.registry import Registry
from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.events import TurnCompleted, TurnRecovered, TurnStarted
from patchyard.protocol.ops import Submission, TurnInput
from patchyard.protocol.rollout_lines import LinePayload
from patchyard.protocol.tasks import TurnStatus
from patchyard.rollout import UnfinishedTurn

from . import records
from .ending import Ending
from .state import StopKind, TurnEnd, TurnState
from .step import Step

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recovery:
    """The unfinished turn that a new segment goes on with."""

    turn: UnfinishedTurn


class Turn:
    """One turn of a thread. `run` is called once; `stop` and `steer` may be called at any time."""

    def __init__(
        self,
        thread: Thread,
        registry: Registry,
        turn_id: str,
        *,
        submission: Submission | None,
        recovery: Recovery | None = None,
    ) -> None:
        self.id = turn_id
        self.output_schema = submission.op.output_schema if submission and isinstance(submission.op, TurnInput) else None
        self.segment = 0 if recovery is None else recovery.turn.segment + 1
        self.state = TurnState(thread, turn_id, _spend(thread, recovery, thread.ports.clock.now_ms()), submission)
        self._thread = thread
        self._registry = registry
        self._recovery = recovery
        self._journal = thread.journal
        self._clock = thread.ports.clock
        self._ending = Ending(self.state)
        self._stop: StopKind | None = None
        self._task: asyncio.Task[TurnEnd] | None = None
        self._announced = recovery is not None
        self._step: Step | None = None
        self._steps = 0

    # --- from the session

    def stop(self, kind: StopKind) -> None:
        """End the turn at its next await point. The first reason wins; too late is harmless."""
        if self._stop is not None or self.state.at_end:
            return
        self._stop = kind
        if self._task is not None:
            self._task.cancel()

    def steer(self, submission: Submission) -> None:
        """Input for the running turn; after a recovery perhaps the input that started it."""
        if submission.id == self.id:
            self.state.submission = submission
        else:
            self.state.steers.append(submission)

    # --- the turn

    async def run(self) -> TurnEnd:
        """Run to its end, a park or a hand-over. LeaseLost passes through."""
        self._task = asyncio.current_task()
        self._journal.turn_id = self.id
        attributes: dict[str, str | int | float | bool] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "patchyard",
            "gen_ai.conversation.id": self._thread.config.thread_id,
            "gen_ai.request.model": self._thread.active_settings.model,
            "patchyard.turn.id": self.id,
            "patchyard.turn.segment": self.segment,
        }
        span_key = f"{self.id}/{self.segment}"
        with self._thread.ports.telemetry.span("invoke_agent patchyard", key=span_key, attributes=attributes) as span:
            end = await self._guarded()
            span.set(**{"patchyard.turn.status": end})
        return end

    async def _guarded(self) -> TurnEnd:
        watchdog = asyncio.create_task(self._watch_wall_time())
        try:
            try:
                if self._stop is None:
                    return await self._work()
            except asyncio.CancelledError:
                if self._stop is None:
                    raise
                asyncio.current_task().uncancel()  # type: ignore[union-attr]
            self.state.at_end = True
            self._announce()
            return await self._stopped()
        finally:
            watchdog.cancel()

    async def _work(self) -> TurnEnd:
        try:
            await self._begin()
            await self._loop()
        except ParkTurn as parked:
            self.state.at_end = True
            return await self._ending.park(parked)
        except StopTurn:
            self.state.at_end = True
            return await self._ending.interrupted(self._step)
        except TurnError as error:
            self.state.at_end = True
            return await self._ending.failed(self._step, error.info)
        except LeaseLost:
            raise
        except Exception:  # noqa: BLE001 - boundary
            # The boundary of a turn: a fault of ours ends it with one clear event instead of a hanging thread.
            _log.exception("turn failed", extra={"turn_id": self.id})
            self.state.at_end = True
            message = "The service made a mistake. The work so far is kept; try again, and report it if it happens twice."
            return await self._ending.failed(self._step, ErrorInfo.of(ErrorCode.INTERNAL, message))
        return "completed"

    async def _stopped(self) -> TurnEnd:
        match self._stop:
            case "suspend":
                return await self._ending.suspended(self._step)
            case "wall_time":
                limit = self.state.spend.budgets.wall_time_s or 0
                error = BudgetExceeded(f"seconds of wall time ({limit:g})")
                return await self._ending.failed(self._step, error.info, why=records.OUT_OF_TIME)
            case _:
                return await self._ending.interrupted(self._step)

    async def _watch_wall_time(self) -> None:
        left = self.state.spend.wall_time_left(self._clock.now_ms())
        if left is not None:
            await self._clock.sleep(max(left, 0))
            self.stop("wall_time")

    # --- beginning

    async def _begin(self) -> None:
        if self._recovery is not None:
            await self._recover(self._recovery)
            return
        thread = self._thread
        if thread.config.spec.repository.type != "none" and not thread.history.items:
            thread.ports.sandbox.prepare()
        self._announce()
        if self._journal.world is None:
            # The first look at the repository may take a while: people see the turn meanwhile.
            await self._journal.flush()
        await self._record_input()

    def _announce(self) -> None:
        """The first records of a turn."""
        if self._announced:
            return
        self._announced = True
        thread, submission = self._thread, self.state.submission
        now = self._clock.now_ms()
        payloads: list[LinePayload] = []
        if not thread.introduced:
            thread.introduced = True
            payloads += [records.session_meta(thread), records.session_configured(thread)]
        payloads.append(
            TurnStarted(
                model=thread.active_settings.model,
                model_context_window=thread.config.model_context_window,
                trace=submission.trace if submission else None,
                submitted_at=submission.submitted_at if submission else now,
                started_at=now,
            )
        )
        self._journal.post(*payloads, submission_id=self.id)
        self._ending.close_leftovers()

    async def _record_input(self) -> None:
        """Context and input in one commit, which is what takes the submission off the queue."""
        context = await self._surroundings()
        consumed = [self.id] if self.state.submission is not None else []
        payloads = (records.turn_context(self._thread, self.id), *context, *self.state.input_records())
        await self._journal.commit(*payloads, submission_id=self.id, consumed=consumed)

    async def _surroundings(self) -> Sequence[LinePayload]:
        thread = self._thread
        now = look(thread.active_settings, await thread.instructions(), self._clock.now_ms())
        told = tell(now, self._journal.world)
        return () if told.record is None else (*told.items, told.record)

    async def _recover(self, recovery: Recovery) -> None:
        turn = recovery.turn
        reason = "unparked" if turn.parked is not None else self._thread.config.recovery_reason
        self._journal.post(TurnRecovered(segment=self.segment, reason=reason))
        again = self._ending.close_lost_calls(everything_waited=turn.parked is not None)
        if self._journal.world is None:
            while self.state.submission is None:
                self.state.news.clear()
                await self.state.wait_news()
            await self._record_input()
        if again:
            await self._finish_calls(again)

    async def _finish_calls(self, calls: Sequence[Call]) -> None:
        """Calls that waited for a person, or behind one that did."""
        self._step = self._new_step()
        for call in calls:
            self._step.runner.start(call)
        await self._step.runner.settle()

    # --- steps

    async def _loop(self) -> None:
        while True:
            if await self._one_step() or self.state.deliver_steers():
                continue
            feedback = await self._thread.ports.gate.before_complete(self.state.outcome(TurnStatus.COMPLETED, None))
            if feedback is not None:
                await self._journal.commit(records.note(feedback))
                continue
            if await self._finished():
                return

    async def _one_step(self) -> bool:
        """A step; True when the model expects another one. Steers that came meanwhile are delivered then."""
        now = self._clock.now_ms()
        self.state.spend.check(now)
        if spent := self.state.spend.nearly_spent(now):
            self._journal.post(records.wrap_up_note(spent))
        if self._steps:
            self._journal.post(*await self._surroundings())
        self._steps += 1
        self._step = self._new_step()
        result = await self._step.run()
        self.state.last_message = result.last_message or self.state.last_message
        if result.follow_up:
            self.state.deliver_steers()
        return result.follow_up

    def _new_step(self) -> Step:
        number = f"{self.segment}.{self._steps}"
        return Step(
            self._thread, self._registry, self.state.spend, turn_id=self.id, number=number, output_schema=self.output_schema
        )

    async def _finished(self) -> bool:
        """End as completed. False: a steer came and was delivered; another step is due."""
        if self.state.deliver_steers():
            return False
        await self._thread.processes.kill_all(grace_s=self._thread.config.interrupt_grace_s)
        self._ending.close_items()
        events = await self._thread.ports.gate.at_end(self.state.outcome(TurnStatus.COMPLETED, None))
        while True:
            if self.state.deliver_steers():
                return False
            self.state.at_end = True
            if await self.state.finish(*events, self._completed()):
                return True
            self.state.at_end = False
            if self.state.interrupts:
                self.stop("interrupt")
                await asyncio.sleep(0)

    def _completed(self) -> TurnCompleted:
        return TurnCompleted(last_agent_message=self.state.last_message, **self.state.sums())


def _spend(thread: Thread, recovery: Recovery | None, now_ms: int) -> Spend:
    budgets = thread.config.spec.budgets
    if recovery is None:
        return Spend(budgets, now_ms)
    turn = recovery.turn
    return Spend(
        budgets,
        # Time spent parked is nobody's work: an unparked turn gets its wall time anew.
        now_ms if turn.parked is not None else turn.started_at,
        model_requests=turn.model_requests,
        tool_calls=turn.tool_calls,
        usage=turn.usage,
        cost_usd=turn.cost_usd,
    )
