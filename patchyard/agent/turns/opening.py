"""How a turn begins, or goes on in a new segment: its first records, its context, its input. The counterpart of `ending`."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from patchyard.agent.context.history import Call
from patchyard.agent.context.surroundings import Surroundings, look, tell
from patchyard.agent.hooks import NOTHING, Verdict
from patchyard.agent.thread import Thread
from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.events import TurnRecovered, TurnStarted
from patchyard.protocol.model_items import Message
from patchyard.protocol.rollout_lines import LinePayload
from patchyard.rollout import UnfinishedTurn

from . import records
from .ending import Ending
from .state import TurnState
from .windows import TurnWindows


@dataclass(frozen=True)
class Recovery:
    """The unfinished turn that a new segment goes on with."""

    turn: UnfinishedTurn


class Opening:
    """Every step of it goes on where it was cut off when it is called again.

    `context`: what this kind of turn tells the model before its input.
    """

    def __init__(
        self,
        state: TurnState,
        ending: Ending,
        windows: TurnWindows,
        context: Callable[[], Sequence[Message]],
        *,
        segment: int,
    ) -> None:
        self._state = state
        self._thread = state.thread
        self._journal = state.thread.journal
        self._ending = ending
        self._windows = windows
        self._context = context
        self._segment = segment
        self._resumed = False
        """The recovery was told."""
        self.waiting_calls: Sequence[Call] = ()
        """Calls that waited for a person when the turn was parked, or behind one that did."""
        self.blocked: ErrorInfo | None = None
        """A hook does not let the turn go on with its input."""

    async def start(self) -> None:
        """A new turn."""
        thread = self._thread
        if not self._state.announced:
            if thread.config.spec.repository.type != "none" and not thread.history.items:
                thread.ports.sandbox.prepare()
            self.announce()
            if self._journal.world is None:
                # The first look at the repository may take a while: people see the turn meanwhile.
                await self._journal.flush()
        if not self._state.input_recorded:
            await self._input()

    def announce(self) -> None:
        """The first records of a turn."""
        if self._state.announced:
            return
        self._state.announced = True
        thread, submission = self._thread, self._state.submission
        now = thread.ports.clock.now_ms()
        payloads: list[LinePayload] = []
        if not thread.introduced:
            thread.introduced = True
            payloads += [records.session_meta(thread), records.session_configured(thread)]
        payloads.append(
            TurnStarted(
                kind=self._state.kind,
                model=thread.active_settings.model,
                model_context_window=thread.config.profile(thread.active_settings.model).context_window,
                trace=submission.trace if submission else None,
                submitted_at=submission.submitted_at if submission else now,
                started_at=now,
            )
        )
        # In one write: what is left open is known up to the next turn's start.
        self._journal.post(*payloads, *self._ending.leftovers(), submission_id=self._state.id)
        self._state.answer_changes()

    def resume(self, recovery: Recovery) -> None:
        """The first records of a segment that goes on with a turn. Calls whose fate is not known are answered."""
        if self._resumed:
            return
        self._resumed = True
        parked = recovery.turn.parked is not None
        self._journal.post(
            TurnRecovered(segment=self._segment, reason="unparked" if parked else self._thread.config.recovery_reason)
        )
        self.waiting_calls = self._ending.close_lost_calls(everything_waited=parked)
        self._state.input_recorded = recovery.turn.input_recorded

    async def go_on(self) -> None:
        """After `resume`: the context as it is now, and the input if the segment before did not come so far."""
        if self._state.input_recorded:
            self._journal.post(*await self.surroundings())
            return
        await self.own_submission()
        await self._input()

    async def own_submission(self) -> None:
        """Wait until what started the turn was received again."""
        while self._state.submission is None:
            self._state.news.clear()
            await self._state.wait_news()

    async def surroundings(self) -> Sequence[LinePayload]:
        """What the model was not told yet of its surroundings."""
        told = tell(await surroundings_of(self._thread), self._journal.world)
        return () if told.record is None else (*told.items, told.record)

    async def _input(self) -> None:
        """Context and input in one commit, which is what takes the submission off the queue."""
        await self._windows.before_input()
        thread, submission = self._thread, self._state.submission
        hooks = thread.hooks
        started = await self._session_hooks()
        prompted = NOTHING if submission is None else await hooks.user_prompt(records.text_of(submission))
        refusal = prompted.block or prompted.stop
        context = await self.surroundings()
        consumed = [self._state.id] if submission is not None else []
        payloads = (
            records.turn_context(thread, self._state.id, self._state.began_with or thread.settings),
            *context,
            *hooks.notes(started),
            *self._context(),
            *self._state.input_records(for_model=refusal is None),
            *hooks.notes(prompted),
        )
        if started.stop is not None:
            self.blocked = stopped_by_hook("SessionStart", started.stop)
        elif refusal is not None:
            self.blocked = stopped_by_hook("UserPromptSubmit", refusal)
        await self._journal.commit(*payloads, submission_id=self._state.id, consumed=consumed)

    async def _session_hooks(self) -> Verdict:
        thread = self._thread
        if thread.session_started:
            return NOTHING
        thread.session_started = True
        try:
            return await thread.hooks.session_start("resume" if thread.resumed else "startup")
        except asyncio.CancelledError:
            thread.session_started = False
            raise


async def surroundings_of(thread: Thread) -> Surroundings:
    """The thread's surroundings as they are now."""
    images = thread.config.profile(thread.active_settings.model).images
    return look(thread.active_settings, await thread.instructions(), thread.ports.clock.now_ms(), images=images)


def stopped_by_hook(event: str, reason: str) -> ErrorInfo:
    """The error of a turn that a hook has ended."""
    return ErrorInfo.of(ErrorCode.HOOK_BLOCKED, f"A {event} hook ended the turn: {reason}", event=event)
