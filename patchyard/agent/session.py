"""A session: one thread in this process. Takes its submissions, runs its turns, answers every Op exactly once."""

import asyncio
from collections.abc import Coroutine
from enum import StrEnum
from typing import Any

from patchyard.protocol.errors import NotSubmittedReason
from patchyard.protocol.events import OpApplied, OpRejected, ThreadClosed, ThreadSettingsApplied
from patchyard.protocol.ops import (
    BudgetAnswer,
    CleanBackgroundTerminals,
    Compact,
    DynamicToolResponse,
    ExecApproval,
    InterAgentCommunication,
    Interrupt,
    PatchApproval,
    RecoverTurn,
    RefreshMcpServers,
    ReloadUserConfig,
    RequestPermissionsResponse,
    ResolveElicitation,
    Review,
    RunUserShellCommand,
    Shutdown,
    StartIfIdle,
    Steer,
    Submission,
    SuspendTurnAndShutdown,
    ThreadSettings,
    TurnInput,
    TurnSettings,
    UserInputAnswer,
)
from patchyard.rollout import RestoredThread

from .approvals import AnswerOp, first_of
from .config import Ports, SessionConfig
from .thread import Thread
from .tools.registry import registry_for
from .turns import CompactTurn, Recovery, ReviewTurn, Turn, TurnEnd, UserShellTurn
from .turns.records import is_empty, user_records


class SessionOutcome(StrEnum):
    """Why a session ended."""

    IDLE = "idle"
    """No turn runs and nothing is left to do; the lease can be given back."""
    PARKED = "parked"
    """The turn waits; the lease is gone already."""
    SUSPENDED = "suspended"
    """A turn is unfinished and another worker goes on with it, or would have."""
    CLOSED = "closed"
    """The thread takes no more submissions."""


class Session:
    """See the module. `run` once; LeaseLost and unforeseen errors of the channel are raised after everything was stopped."""

    def __init__(self, config: SessionConfig, ports: Ports, restored: RestoredThread | None = None) -> None:
        self._config = config
        self._ports = ports
        self._thread = Thread(config, ports, restored)
        self._journal = self._thread.journal
        self._registry = registry_for(self._thread)
        self._turn: Turn | None = None
        self._shutdown: Submission | None = None
        self._suspended = False
        self._received = 0
        self._wake = asyncio.Event()
        self._chores: set[asyncio.Task[None]] = set()
        """What an Op set going that takes a moment."""
        if restored is not None and restored.turn is not None:
            kind = _KINDS.get(restored.turn.kind, Turn)
            recovery = Recovery(restored.turn)
            self._turn = kind(self._thread, self._registry, recovery.turn.turn_id, submission=None, recovery=recovery)

    async def run(self) -> SessionOutcome:
        """Serve the thread until it is idle, parked, suspended or closed."""
        listener = asyncio.create_task(self._listen())
        try:
            return await self._serve(listener)
        finally:
            for chore in self._chores:
                chore.cancel()
            listener.cancel()
            await asyncio.wait([listener, *self._chores])
            if not listener.cancelled():
                listener.exception()  # Seen; `_serve` raised it if it mattered.
            await self._thread.processes.kill_all(grace_s=self._config.interrupt_grace_s)

    def suspend(self) -> None:
        """Hand over: stop at the next await point without a terminal event."""
        self._suspended = True
        if self._turn is not None:
            self._turn.stop("suspend")
        self._wake.set()

    # --- serving

    async def _serve(self, listener: "asyncio.Task[None]") -> SessionOutcome:
        while True:
            turn = await self._next_turn(listener)
            if turn is not None:
                end = await self._run_turn(turn, listener)
                if end == "parked":
                    return SessionOutcome.PARKED
                if end == "suspended":
                    return SessionOutcome.SUSPENDED
                self._after_turn(turn)
                continue
            if self._shutdown is not None:
                await self._settle_chores()
                await self._journal.commit(ThreadClosed(), submission_id=self._shutdown.id, consumed=[self._shutdown.id])
                return SessionOutcome.CLOSED
            await self._settle_chores()
            await self._journal.flush()
            if self._turn is None:
                return SessionOutcome.SUSPENDED if self._suspended else SessionOutcome.IDLE

    async def _next_turn(self, listener: "asyncio.Task[None]") -> Turn | None:
        """The turn to run; None when there is none and the session should leave."""
        while self._turn is None and not self._suspended and self._shutdown is None:
            processes = self._thread.processes
            wait_s = self._config.linger_s if self._received else self._config.first_wait_s
            self._wake.clear()
            seen = self._received
            if processes.kept_running:
                wait_s = max(wait_s, self._config.background_s)
                ended = processes.kept_ended()
                await first_of(self._wake.wait(), asyncio.wait([listener]), ended, self._ports.clock.sleep(wait_s))
            elif wait_s:
                await first_of(self._wake.wait(), asyncio.wait([listener]), self._ports.clock.sleep(wait_s))
            else:
                await _let_others_run()
            if listener.done():
                listener.result()
            if self._received == seen:
                break
        return self._turn

    async def _run_turn(self, turn: Turn, listener: "asyncio.Task[None]") -> TurnEnd:
        thread = self._thread
        turn.state.began_with = turn.state.began_with or thread.settings
        thread.active_settings = turn.settings()
        thread.stop_asked.clear()
        thread.hook_words.clear()
        thread.approvals.allowed.begin_turn()
        thread.changed_files = False
        running = asyncio.create_task(turn.run())
        try:
            await asyncio.wait([running, listener], return_when=asyncio.FIRST_COMPLETED)
            if not running.done() and turn.state.at_end:
                # With the turn's last record the lease may be gone; that ends the listener, not the turn.
                await asyncio.wait([running])
            if not running.done():
                listener.result()
            return await running
        finally:
            if not running.done():
                running.cancel()
                await asyncio.wait([running])

    def _after_turn(self, turn: Turn) -> None:
        self._turn = None
        for submission in turn.state.interrupts:
            self._rejected(submission, "the turn had already ended", NotSubmittedReason.NO_ACTIVE_TURN)
        # What came after the turn's last record is new input: the queue accepted it when no turn was active any more.
        for submission in sorted([*turn.state.steers, *turn.state.later], key=lambda submission: submission.id):
            self._dispatch(submission)

    # --- submissions

    async def _listen(self) -> None:
        while True:
            submission = await self._ports.channel.receive()
            self._received += 1
            self._dispatch(submission)
            if self._turn is not None:
                self._turn.state.news.set()
            self._wake.set()

    def _dispatch(self, submission: Submission) -> None:
        """Act on one submission, or pass it on. Never waits: what has to be written is posted."""
        op = submission.op
        match op:
            case TurnInput():
                self._turn_input(submission, op)
            case InterAgentCommunication():
                self._inter_agent(submission, op)
            case Interrupt():
                self._interrupt(submission, op)
            case Shutdown():
                self._shut_down(submission)
            case ExecApproval() | PatchApproval() | UserInputAnswer() | BudgetAnswer():
                self._answer(submission, op)
            case ThreadSettings():
                self._thread.settings = self._thread.settings.merged(op.overrides)
                self._journal.post(
                    ThreadSettingsApplied(overrides=op.overrides), submission_id=submission.id, consumed=[submission.id]
                )
            case TurnSettings():
                self._turn_settings(submission, op)
            case SuspendTurnAndShutdown():
                self._applied(submission)
                self.suspend()
            case RecoverTurn():
                self._recover(submission, op)
            case CleanBackgroundTerminals():
                self._chore(self._clean(submission))
            case Compact():
                self._own_turn(submission, CompactTurn, waits=True)
            case Review():
                self._own_turn(submission, ReviewTurn)
            case RunUserShellCommand():
                self._own_turn(submission, UserShellTurn, waits=True)
            case RefreshMcpServers():
                self._rejected(submission, "this thread has no MCP servers")
            case ReloadUserConfig():
                self._rejected(
                    submission, "a thread keeps the configuration that it was started with; start a new task instead"
                )
            case RequestPermissionsResponse() | DynamicToolResponse() | ResolveElicitation():
                self._rejected(submission, "there is no open request that this could answer")

    def _turn_input(self, submission: Submission, op: TurnInput) -> None:
        refusal = self._refusal(submission, op)
        if refusal is not None and self._turn is not None and self._turn.state.at_end:
            # The queue may have ended the turn already and taken this for the next one.
            self._turn.state.later.append(submission)
            return
        if refusal is not None:
            self._rejected(submission, refusal.value.replace("_", " "), refusal)
            return
        if self._turn is not None and submission.id == self._turn.id:
            # What started it, again: it was not recorded yet.
            self._thread.settings = self._thread.settings.merged(op.overrides)
            self._turn.state.began_with = self._thread.settings
            self._thread.active_settings = self._turn.settings()
            self._turn.steer(submission)
            return
        if self._turn is not None:
            self._turn.steer(submission)
            if op.overrides is not None:
                self._thread.settings = self._thread.settings.merged(op.overrides)
                self._journal.post(ThreadSettingsApplied(overrides=op.overrides), submission_id=submission.id)
            return
        self._thread.settings = self._thread.settings.merged(op.overrides)
        self._start(submission)

    def _refusal(self, submission: Submission, op: TurnInput) -> NotSubmittedReason | None:
        """Why input is not taken, checked in the order of NotSubmittedReason."""
        turn = self._turn
        if turn is not None and submission.id == turn.id:
            return None
        match op.mode:
            case StartIfIdle() if turn is not None:
                return NotSubmittedReason.NOT_IDLE
            case Steer() if turn is None:
                return NotSubmittedReason.NO_ACTIVE_TURN
            case Steer() if turn is not None and op.mode.expected_turn_id != turn.id:
                return NotSubmittedReason.EXPECTED_TURN_MISMATCH
            case _:
                pass
        if turn is not None and turn.kind != "regular":
            return NotSubmittedReason.ACTIVE_TURN_NOT_STEERABLE
        if is_empty(op.items):
            return NotSubmittedReason.EMPTY_INPUT
        if turn is not None and op.output_schema is not None and op.output_schema != turn.output_schema:
            return NotSubmittedReason.OUTPUT_SCHEMA_MISMATCH
        return None

    def _inter_agent(self, submission: Submission, op: InterAgentCommunication) -> None:
        if self._turn is not None and self._turn.kind != "regular" and submission.id != self._turn.id:
            self._turn.state.later.append(submission)
        elif self._turn is not None:
            self._turn.steer(submission)
        elif op.trigger_turn:
            self._start(submission)
        else:
            records = user_records(submission, self._ports.clock.now_ms())
            self._journal.post(*records, submission_id=submission.id, consumed=[submission.id])

    def _own_turn(self, submission: Submission, kind: type[Turn], *, waits: bool = False) -> None:
        """An Op that is a turn of its own. `waits`: for the end of a running one, else it is refused then."""
        if self._turn is None:
            self._start(submission, kind)
        elif self._turn.id == submission.id:
            self._turn.steer(submission)
        elif waits:
            self._turn.state.later.append(submission)
        else:
            self._rejected(submission, f"the turn {self._turn.id} is running", NotSubmittedReason.NOT_IDLE)

    def _start(self, submission: Submission, kind: type[Turn] = Turn) -> None:
        if self._shutdown is not None:
            self._rejected(submission, "the thread was closed before this could be done")
            return
        if self._suspended:
            return  # Stays in the queue for whoever owns the thread next.
        self._turn = kind(self._thread, self._registry, submission.id, submission=submission)

    async def _clean(self, submission: Submission) -> None:
        await self._thread.processes.kill_kept(grace_s=self._config.interrupt_grace_s)
        self._applied(submission)

    def _chore(self, work: Coroutine[Any, Any, None]) -> None:
        chore = asyncio.create_task(work)
        self._chores.add(chore)
        chore.add_done_callback(self._chores.discard)

    async def _settle_chores(self) -> None:
        while self._chores:
            await asyncio.gather(*self._chores)

    def _interrupt(self, submission: Submission, op: Interrupt) -> None:
        if self._turn is None:
            self._rejected(submission, "no turn is running", NotSubmittedReason.NO_ACTIVE_TURN)
        elif op.turn_id not in (None, self._turn.id):
            self._rejected(submission, f"the running turn is {self._turn.id}", NotSubmittedReason.EXPECTED_TURN_MISMATCH)
        else:
            self._turn.state.interrupts.append(submission)
            self._turn.state.keep_background = self._turn.state.keep_background or op.keep_background
            self._turn.stop("interrupt")

    def _shut_down(self, submission: Submission) -> None:
        if self._shutdown is not None:
            self._rejected(submission, "the thread is closing already")
            return
        self._shutdown = submission
        if self._turn is not None:
            self._turn.stop("interrupt")

    def _answer(self, submission: Submission, op: AnswerOp) -> None:
        why_not = self._thread.questions.answer(submission, op)
        if why_not is not None:
            self._rejected(submission, why_not)

    def _turn_settings(self, submission: Submission, op: TurnSettings) -> None:
        if self._turn is None:
            self._rejected(submission, "no turn is running", NotSubmittedReason.NO_ACTIVE_TURN)
        elif op.turn_id != self._turn.id:
            self._rejected(submission, f"the running turn is {self._turn.id}", NotSubmittedReason.EXPECTED_TURN_MISMATCH)
        else:
            self._turn.state.change(submission, op.overrides)
            self._thread.active_settings = self._turn.settings()

    def _recover(self, submission: Submission, op: RecoverTurn) -> None:
        if self._turn is not None and self._turn.id == op.turn_id:
            self._applied(submission)
        else:
            self._rejected(submission, "this turn is not unfinished", NotSubmittedReason.NO_ACTIVE_TURN)

    def _applied(self, submission: Submission) -> None:
        self._journal.post(OpApplied(op=submission.op.type), submission_id=submission.id, consumed=[submission.id])

    def _rejected(self, submission: Submission, message: str, reason: NotSubmittedReason | None = None) -> None:
        rejected = OpRejected(op=submission.op.type, reason=reason, message=message)
        self._journal.post(rejected, submission_id=submission.id, consumed=[submission.id])


_KINDS: dict[str, type[Turn]] = {"compact": CompactTurn, "review": ReviewTurn, "user_shell": UserShellTurn}


async def _let_others_run() -> None:
    """Give a submission that is already there the chance to be received."""
    for _ in range(3):
        await asyncio.sleep(0)
