"""One claim of one thread: from its records to a session with all its ports, and to an end that leaves nothing behind."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from observability import Attr, ThreadTelemetry
from observability.names import RESTORE
from patchyard import __version__
from patchyard.adapters.model import ModelRouter
from patchyard.adapters.queue import Claim, LeaseReleased, QueueThreadChannel
from patchyard.adapters.store import StoredSegments, StoreError
from patchyard.agent.config import Ports, SessionConfig
from patchyard.agent.session import Session, SessionOutcome
from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.events import TurnStarted, VerificationCompleted
from patchyard.protocol.policies import SandboxPolicy
from patchyard.protocol.rollout_lines import EventMsgLine, RolloutLine
from patchyard.protocol.tasks import TaskSpec
from patchyard.rollout import RestoredThread, RolloutError, decode_line, load_thread, read_back, thread_prefix
from workers.parts import Parts

from .agents import QueueAgents, depth_of
from .approvals import RepositoryApprovals
from .boxes import TurnBoxes
from .channel import WorkerChannel
from .delivery import Delivery
from .giving_up import GivingUp
from .owners import Owner

log = logging.getLogger(__name__)

MAX_CRASHES = 3
"""A turn that took so many workers down with it is not tried again."""
STORE_PAUSE_S = 2.0
"""Before a thread whose records can't be read now is given back."""
_PAGE = 1000
_TOO_MANY = "The turn ended {} workers and is not tried again. Its rollout shows how far it came."


@dataclass(frozen=True)
class _Start:
    """What a segment begins with."""

    restored: RestoredThread | None
    rounds_done: int


class Segment:
    """Runs a claim. `suspend` may be called at any time, from the same loop."""

    def __init__(self, parts: Parts, claim: Claim, queue_channel: QueueThreadChannel) -> None:
        self._parts = parts
        self._claim = claim
        self._queue_channel = queue_channel
        self._session: Session | None = None
        self._suspended = asyncio.Event()
        self._telemetry = ThreadTelemetry(
            parts.observability,
            {
                Attr.CONVERSATION_ID: claim.thread_id,
                Attr.TENANT: claim.tenant_id,
                Attr.AGENT_VERSION: __version__,
                **({Attr.TASK: claim.task_id} if claim.task_id else {}),
            },
        )
        self._channel = WorkerChannel(queue_channel, self._telemetry, parts.redactor, segment=claim.segment)

    def suspend(self) -> None:
        """Stop at the next await point; the turn goes on elsewhere."""
        self._suspended.set()
        if self._session is not None:
            self._session.suspend()

    async def run(self) -> None:
        """Serve the thread until it needs no worker. LeaseLost when another one owns it."""
        claim = self._claim
        try:
            spec = TaskSpec.model_validate_json(claim.spec_json)
        except ValidationError as error:
            await self._giving_up(f"The task's specification can't be read: {error}").thread()
            return
        gives_up = claim.crashes >= MAX_CRASHES and claim.active_turn_id is not None
        if claim.crashes > MAX_CRASHES and gives_up:
            # Even to read its records was too much: it ends without them.
            await self._giving_up(_TOO_MANY.format(claim.crashes)).turn()
            return
        try:
            start = await self._restore()
        except (StoreError, RolloutError) as error:
            log.warning("the thread's records can't be read, it is given back: %s", error)
            await asyncio.sleep(STORE_PAUSE_S)
            await self._channel.hand_over()
            return
        if gives_up:
            self._telemetry.end_turn()
            await self._giving_up(_TOO_MANY.format(claim.crashes), start.restored).turn()
            return
        await self._serve(spec, start)

    async def _serve(self, spec: TaskSpec, start: _Start) -> None:
        boxes = self._boxes(spec, start.restored)
        self._channel.before_release = lambda: boxes.close(leave=True)
        delivery = Delivery(
            tenant_id=self._claim.tenant_id,
            spec=spec,
            rounds=self._parts.settings.verify_rounds,
            rounds_done=start.rounds_done,
            boxes=boxes,
            channel=self._channel,
            artefacts=self._parts.artefacts,
            telemetry=self._telemetry,
            metrics=self._parts.observability.metrics,
        )
        model = ModelRouter(
            self._parts.providers,
            self._parts.transport,
            tenant_id=self._claim.tenant_id,
            trace=self._telemetry.context,
            gate=self._parts.budgets,
        )
        ports = Ports(
            channel=self._channel,
            model=model,
            sandbox=boxes,
            gate=delivery,
            telemetry=self._telemetry,
            clock=self._parts.clock,
            agents=QueueAgents(
                self._parts.queue, self._parts.store, self._parts.boxes.snapshots, self._owner(), spec=spec, boxes=boxes
            ),
            approvals=RepositoryApprovals.of(
                self._parts.catalog, spec.repository, tenant_id=self._claim.tenant_id, thread_id=self._claim.thread_id
            ),
        )
        self._session = Session(self._config(spec), ports, start.restored)
        if self._suspended.is_set():
            self._session.suspend()
        try:
            outcome = await self._session.run()
            await self._after(outcome)
        except LeaseReleased:
            log.debug("nothing is left to do for the thread")
        finally:
            self._telemetry.end_turn()
            await boxes.close(leave=False)

    async def _after(self, outcome: SessionOutcome) -> None:
        """Give the lease up where the session did not."""
        match outcome:
            case SessionOutcome.SUSPENDED | SessionOutcome.IDLE:
                # Idle and still held means that something arrived just now: whoever claims next looks at it.
                if self._queue_channel.held:
                    await self._channel.hand_over()
            case SessionOutcome.PARKED | SessionOutcome.CLOSED:
                pass

    async def _restore(self) -> _Start:
        claim = self._claim
        if claim.next_ordinal == 0:
            return _Start(None, 0)
        tail = await self._tail()
        store = StoredSegments(self._parts.store)
        restored = await load_thread(store, claim.tenant_id, claim.thread_id, tail)
        turn = restored.turn
        if turn is None:
            return _Start(restored, 0)
        self._telemetry.begin_turn(turn.turn_id, submission=turn.trace, segment=claim.segment, accepted_ms=None)
        with self._telemetry.span(RESTORE, key=f"restore/{claim.segment}"):
            rounds = await self._rounds_done(store, tail, turn.turn_id)
        return _Start(restored, rounds)

    async def _tail(self) -> list[RolloutLine]:
        """The records that the queue still holds, oldest first."""
        lines: list[RolloutLine] = []
        while True:
            after = lines[-1].ordinal if lines else None
            page = await self._parts.queue.read_lines(self._claim.thread_id, after=after, limit=_PAGE)
            lines += [decode_line(line.json) for line in page]
            if len(page) < _PAGE:
                return lines

    async def _rounds_done(self, store: StoredSegments, tail: list[RolloutLine], turn_id: str) -> int:
        """Verification rounds that the turn has used up in earlier segments."""
        rounds = 0
        for line in reversed(tail):
            if _begins(line, turn_id):
                return rounds
            rounds = max(rounds, _round_of(line))
        below = tail[0].ordinal if tail else None
        if below == 0:
            return rounds
        prefix = thread_prefix(self._claim.tenant_id, self._claim.thread_id)
        async for stored in read_back(store, prefix, below=below):
            line = decode_line(stored.json)
            if _begins(line, turn_id):
                break
            rounds = max(rounds, _round_of(line))
        return rounds

    def _boxes(self, spec: TaskSpec, restored: RestoredThread | None) -> TurnBoxes:
        claim = self._claim
        return TurnBoxes(
            self._parts.boxes,
            self._owner(),
            spec=spec,
            policy=_policy(spec, restored),
            channel=self._channel,
            telemetry=self._telemetry,
            segment=max(1, claim.segment),
        )

    def _owner(self) -> Owner:
        claim = self._claim
        turn_id = claim.active_turn_id or claim.thread_id
        return Owner(claim.tenant_id, claim.thread_id, turn_id, self._parts.worker_id, claim.fence)

    def _config(self, spec: TaskSpec) -> SessionConfig:
        settings, claim = self._parts.settings, self._claim
        reason: Literal["worker_lost", "hand_over"] = "hand_over" if claim.reason == "hand_over" else "worker_lost"
        return SessionConfig(
            tenant_id=claim.tenant_id,
            thread_id=claim.thread_id,
            task_id=claim.task_id,
            spec=spec,
            model=settings.model,
            model_context_window=settings.model_context_window,
            models=settings.models,
            compaction=settings.compaction,
            context_budget=settings.context_budget,
            rollout_prefix=thread_prefix(claim.tenant_id, claim.thread_id),
            patchyard_version=__version__,
            recovery_reason=reason,
            stream_retries=settings.model_stream_retries,
            hold_time_s=settings.hold_time_s,
            question_expiry_s=settings.question_expiry_s,
            secrets=self._parts.secrets,
            agents_limit=settings.agents_limit,
            agents_depth_limit=settings.agents_depth,
            tenant_hooks=settings.hooks_of(claim.tenant_id),
            agent_depth=depth_of(spec),
        )

    def _giving_up(self, why: str, restored: RestoredThread | None = None) -> GivingUp:
        error = ErrorInfo.of(ErrorCode.INTERNAL, why)
        parts = self._parts
        return GivingUp(self._queue_channel, self._claim, error, parts.redactor.payload, parts.clock.now_ms, restored)


def _policy(spec: TaskSpec, restored: RestoredThread | None) -> SandboxPolicy:
    """The thread's sandbox policy as far as it is known before the turn's own settings are read."""
    if restored is None:
        return spec.sandbox
    known = restored.turn_context.sandbox if restored.turn_context is not None else spec.sandbox
    return restored.overrides.sandbox or known


def _begins(line: RolloutLine, turn_id: str) -> bool:
    return line.turn_id == turn_id and isinstance(line, EventMsgLine) and isinstance(line.payload, TurnStarted)


def _round_of(line: RolloutLine) -> int:
    if isinstance(line, EventMsgLine) and isinstance(line.payload, VerificationCompleted):
        return line.payload.result.round
    return 0
