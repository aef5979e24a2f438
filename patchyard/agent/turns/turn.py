"""A turn: steps until the model is done, and the one way in which it ends."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from patchyard.agent.config import Settings
from patchyard.agent.errors import BudgetExceeded, CompactionRefused, ContextOverflow, ParkTurn, StopTurn, TurnError
from patchyard.agent.ports import LeaseLost
from patchyard.agent.prompts import prompt_version
from patchyard.agent.retrying import too_long
from patchyard.agent.thread import Thread
from patchyard.agent.tools.registry import Registry
from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.events import DurableMsg, TurnCompleted, Warning_
from patchyard.protocol.ids import new_id
from patchyard.protocol.model_items import Message
from patchyard.protocol.ops import Submission, TurnInput
from patchyard.protocol.tasks import TurnStatus

from . import records
from .allowance import MoreBudget, spend_of
from .ending import Ending
from .opening import Opening, Recovery, stopped_by_hook, surroundings_of
from .state import StopKind, TurnEnd, TurnState
from .step import Step, StepResult, request_of_turn
from .stopping import StopSwitch, Watchdog
from .windows import TurnWindows

_log = logging.getLogger(__name__)


class Turn:
    """One turn of a thread. `run` is called once; `stop` and `steer` may be called at any time."""

    kind: Literal["regular", "review", "compact", "user_shell"] = "regular"

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
        self.output_schema: Mapping[str, Any] | None = None
        if submission is not None and isinstance(submission.op, TurnInput):
            self.output_schema = submission.op.output_schema
        self.segment = 0 if recovery is None else recovery.turn.segment + 1
        spend = spend_of(thread, recovery.turn if recovery is not None else None)
        thread.agents.serve(turn_id, spend)
        self.state = TurnState(thread, turn_id, spend, submission, kind=self.kind, announced=recovery is not None)
        if recovery is not None:
            self.state.overrides = recovery.turn.overrides
            self.state.began_with = thread.active_settings if recovery.turn.input_recorded else None
        self._thread = thread
        self._registry = registry
        self._recovery = recovery
        self._journal = thread.journal
        self._clock = thread.ports.clock
        self._ending = Ending(self.state)
        self._allowance = MoreBudget(self.state, declined=recovery is not None and recovery.turn.budget_declined)
        self._watchdog = Watchdog(spend, self._clock, lambda: self.stop("wall_time"))
        self._switch = StopSwitch()
        self._out_of_time = False
        """The wall time is over and more of it is to be asked for."""
        self._step: Step | None = None
        self._steps = 0
        self._stop_hook_active = False
        look = partial(surroundings_of, thread)
        self._windows = TurnWindows(self.state, registry, segment=self.segment, look=look, context=self._context)
        self._opening = Opening(self.state, self._ending, self._windows, self._context, segment=self.segment)

    # --- from the session

    def settings(self) -> Settings:
        """What it runs with: what it began with, and what was changed for it since."""
        return self.settings_from(self.state.began_with or self._thread.settings).merged(self.state.overrides)

    def settings_from(self, settings: Settings) -> Settings:
        """What this kind of turn makes of the thread's settings."""
        return settings

    def stop(self, kind: StopKind) -> None:
        """End the turn at its next await point. Too late is harmless."""
        if not self.state.at_end:
            self._switch.pull(kind)

    def steer(self, submission: Submission) -> None:
        """Input for the running turn; after a recovery perhaps the input that started it."""
        if submission.id == self.id:
            self.state.submission = submission
        else:
            self.state.steers.append(submission)
            self._thread.agents.input_came.set()

    # --- the turn

    async def run(self) -> TurnEnd:
        """Run to its end, a park or a hand-over. LeaseLost passes through."""
        self._switch.attach()
        self._journal.turn_id = self.id
        attributes: dict[str, str | int | float | bool] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "patchyard",
            "gen_ai.conversation.id": self._thread.config.thread_id,
            "gen_ai.request.model": self._thread.active_settings.model,
            "patchyard.turn.id": self.id,
            "patchyard.turn.segment": self.segment,
            "patchyard.prompt.version": prompt_version(self._thread.config.family(self._thread.active_settings.model)),
        }
        span_key = f"{self.id}/{self.segment}"
        with self._thread.ports.telemetry.span("invoke_agent patchyard", key=span_key, attributes=attributes) as span:
            end = await self._guarded()
            span.set(**{"patchyard.turn.status": end})
        return end

    async def _guarded(self) -> TurnEnd:
        if not self._allowance.waits:
            self._watchdog.arm()
        try:
            while self._switch.why() is None:
                try:
                    return await self._work()
                except asyncio.CancelledError:
                    why = self._switch.why()
                    if why is None:
                        raise
                    self._switch.seen()
                    if why == "wall_time" and self._allowance.asks:
                        self._switch.reset()
                        self._out_of_time = True
            self.state.at_end = True
            self._opening.announce()
            return await self._stopped()
        finally:
            self._watchdog.disarm()

    async def _work(self) -> TurnEnd:
        try:
            await self._through()
        except ParkTurn as parked:
            self.state.at_end = True
            return await self._ending.park(parked)
        except CompactionRefused as refused:
            self.state.at_end = True
            message = f"A hook refused to compact the conversation, which the turn needs to go on: {refused.reason}"
            self._journal.post(Warning_(message=message))
            return await self._ending.interrupted(self._step, note=False)
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
        match self._switch.why():
            case "suspend":
                return await self._ending.suspended(self._step)
            case "wall_time":
                limit = self.state.spend.budgets.wall_time_s or 0
                error = BudgetExceeded(f"seconds of wall time ({limit:g})")
                return await self._ending.failed(self._step, error.info, why=records.OUT_OF_TIME)
            case _:
                return await self._ending.interrupted(self._step)

    # --- budgets

    async def _through(self) -> None:
        """From the beginning to the last step, and on from there whenever a person gave more budget."""
        while True:
            try:
                if self._out_of_time:
                    await self._ending.out_of_time(self._step)
                    self._out_of_time = False
                    self.state.spend.check(self._clock.now_ms())
                await self._begin()
                return await self._loop()
            except BudgetExceeded:
                if not await self._more_budget():
                    raise

    async def _more_budget(self) -> bool:
        """Whether a person raises the limits. Nobody's time runs while they think."""
        self._watchdog.disarm()
        try:
            return await self._allowance.more()
        finally:
            self._watchdog.arm()

    async def _last_step(self) -> BudgetExceeded | None:
        """The budget that leaves only an answer to be given; raised when not even that is left."""
        spend = self.state.spend
        while (over := spend.exceeded(self._clock.now_ms())) is not None and await self._more_budget():
            pass
        if over is not None and (over.hard or spend.wrapped_up):
            raise over
        return over

    # --- beginning

    async def _begin(self) -> None:
        """All that comes before the first step. Called again after more budget was given, it goes on where it was cut off."""
        if not self._allowance.waits:
            self._prewarm()
        if self._recovery is not None:
            await self._resume(self._recovery)
        else:
            await self._opening.start()
        if self._opening.blocked is not None:
            raise TurnError(self._opening.blocked)

    async def _resume(self, recovery: Recovery) -> None:
        self._opening.resume(recovery)
        if self._allowance.waits and not await self._more_budget() and not self.state.input_recorded:
            self.state.spend.check(self._clock.now_ms())
        await self._opening.go_on()
        await self._finish_waiting_calls()

    def _context(self) -> tuple[Message, ...]:
        """What this kind of turn tells the model before its input."""
        return ()

    async def _finish_waiting_calls(self) -> None:
        calls, self._opening.waiting_calls = self._opening.waiting_calls, ()
        if not calls:
            return
        self._step = self._new_step()
        for call in calls:
            self._step.runner.start(call, again=True)
        await self._step.runner.settle()

    # --- steps

    async def _loop(self) -> None:
        while True:
            if await self._one_step() or (self.state.steers and await self._take_steers()):
                continue
            if await self._more_to_do():
                continue
            if await self._finished():
                return

    async def _one_step(self) -> bool:
        """A step; True when the model expects another one. Steers that came meanwhile are delivered before the next."""
        spend = self.state.spend
        over = await self._last_step()
        if self._steps or self._allowance.granted:
            await self._take_steers()
        elif self.segment and over is None:
            await self._windows.between_steps()
        over = await self._last_step()
        if spent := spend.nearly_spent(self._clock.now_ms()):
            told = records.wrap_up_note if over is None else records.last_answer_note
            self._journal.post(*told(spent, self.id))
        if self._steps:
            self._journal.post(*await self._opening.surroundings())
        result = await self._sample(final=over is not None)
        self.state.last_message = result.last_message or self.state.last_message
        if (reason := self._thread.hook_words.stop) is not None:
            raise TurnError(stopped_by_hook("PostToolUse", reason))
        if over is not None:
            raise over
        return result.follow_up

    async def _take_steers(self) -> bool:
        """Between two steps: room for what comes, then what came. True when something was delivered."""
        if self.state.spend.exceeded(self._clock.now_ms()) is None:
            await self._windows.between_steps()
        return await self.state.deliver_steers()

    async def _sample(self, *, final: bool) -> StepResult:
        """A request with its calls; when it does not fit into the window, once more in a new one."""
        self._steps += 1
        self._step = self._new_step(final=final)
        try:
            return await self._step.run()
        except ContextOverflow:
            await self._windows.make_room()
        self._steps += 1
        self._step = self._new_step(final=final)
        try:
            return await self._step.run()
        except ContextOverflow as error:
            raise too_long() from error

    async def _more_to_do(self) -> bool:
        """Whether a Stop hook or the gate wants another round; the model is told why."""
        if await self._stop_hooks():
            return True
        feedback = await self._thread.ports.gate.before_complete(self.state.outcome(TurnStatus.COMPLETED, None))
        if feedback is not None:
            await self._journal.commit(records.note(feedback))
        return feedback is not None

    async def _stop_hooks(self) -> bool:
        verdict = await self._thread.hooks.stop(self.state.last_message, active=self._stop_hook_active)
        if verdict.stop is not None or verdict.block is None:
            return False
        self._stop_hook_active = True
        await self._journal.commit(records.hook_note(new_id(self._clock.now_ms()), verdict.block))
        return True

    @property
    def _request_kind(self) -> Literal["turn", "review"]:
        return "review" if self.kind == "review" else "turn"

    def _prewarm(self) -> None:
        """The model is got ready while the box starts and the repository is looked at."""
        ahead = request_of_turn(
            self._thread, self._registry, turn_id=self.id, output_schema=self.output_schema, kind=self._request_kind
        )
        self._thread.ports.model.prewarm(ahead)

    def _new_step(self, *, final: bool = False) -> Step:
        number = f"{self.segment}.{self._steps}"
        return Step(
            self._thread,
            self._registry,
            self.state.spend,
            turn_id=self.id,
            number=number,
            output_schema=self.output_schema,
            final=final,
            kind=self._request_kind,
        )

    async def _finished(self) -> bool:
        """End as completed. False: a steer came and was delivered; another step is due."""
        if await self.state.deliver_steers():
            return False
        await self._thread.processes.kill_all(grace_s=self._thread.config.interrupt_grace_s, kept=False)
        await self._thread.agents.close_all(grace_s=None)
        self._ending.close_items()
        events = [*self._results(), *await self._thread.ports.gate.at_end(self.state.outcome(TurnStatus.COMPLETED, None))]
        while True:
            if await self.state.deliver_steers():
                return False
            self.state.at_end = True
            if await self.state.finish(*events, self._completed()):
                return True
            self.state.at_end = False
            if self.state.interrupts:
                self.stop("interrupt")
                await asyncio.sleep(0)

    def _results(self) -> Sequence[DurableMsg]:
        """Events of this kind of turn, before those of its end."""
        return ()

    def _completed(self) -> TurnCompleted:
        return TurnCompleted(last_agent_message=self.state.last_message, **self.state.sums())
