"""The thread's channel as a session gets it: the queue's own, with the turn's spans and our records laid in."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from observability import ThreadTelemetry
from patchyard.adapters.queue import QueueThreadChannel
from patchyard.agent.redact import Redactor
from patchyard.protocol.events import LiveMsg, TurnFailed, TurnInterrupted
from patchyard.protocol.model_items import CustomToolCallOutput, FunctionCallOutput
from patchyard.protocol.ops import Submission
from patchyard.protocol.rollout_lines import LinePayload
from patchyard.protocol.tasks import TurnStatus

TURN_STARTERS = frozenset({"turn_input", "review", "compact", "run_user_shell_command"})
"""Ops whose submission becomes a turn when none is active."""


class WorkerChannel:
    """Implements agent.ports.ThreadChannel over the queue's. Records of the worker itself go through `record`."""

    def __init__(self, inner: QueueThreadChannel, telemetry: ThreadTelemetry, redactor: Redactor, *, segment: int) -> None:
        self._inner = inner
        self._telemetry = telemetry
        self._redactor = redactor
        self._segment = max(1, segment)
        self.on_outputs: Callable[[], None] | None = None
        """Called when outputs of tools were committed."""
        self.before_release: Callable[[], Awaitable[None]] | None = None
        """Awaited while the lease still holds, before a turn is parked or handed over."""

    async def receive(self) -> Submission:
        """See agent.ports.ThreadChannel."""
        submission = await self._inner.receive()
        if self._telemetry.turn_id is None and submission.op.type in TURN_STARTERS:
            self._telemetry.begin_turn(
                submission.id, submission=submission.trace, segment=self._segment, accepted_ms=submission.submitted_at
            )
            self._segment = 1
        return submission

    async def commit(
        self,
        payloads: Sequence[LinePayload],
        *,
        turn_id: str | None = None,
        submission_id: str | None = None,
        consumed: Sequence[str] = (),
    ) -> None:
        """See agent.ports.ThreadChannel."""
        spans = self._telemetry.take_records() if turn_id is not None and turn_id == self._telemetry.turn_id else ()
        await self._inner.commit([*payloads, *spans], turn_id=turn_id, submission_id=submission_id, consumed=consumed)
        if self.on_outputs is not None and any(isinstance(p, FunctionCallOutput | CustomToolCallOutput) for p in payloads):
            self.on_outputs()

    async def finish_turn(
        self,
        payloads: Sequence[LinePayload],
        *,
        turn_id: str,
        consumed: Sequence[str] = (),
        answers: Mapping[str, Sequence[LinePayload]] | None = None,
        keep_lease: bool = False,
    ) -> bool:
        """See agent.ports.ThreadChannel."""
        self._telemetry.note_status(_status(payloads))
        spans = self._telemetry.take_records()
        records = [*payloads, *spans]
        finishing = self._inner.finish_turn(records, turn_id=turn_id, consumed=consumed, answers=answers, keep_lease=keep_lease)
        if not await finishing:
            self._telemetry.put_back(spans)
            return False
        self._telemetry.end_turn()
        return True

    async def park(
        self,
        payloads: Sequence[LinePayload],
        *,
        turn_id: str,
        until_ms: int | None = None,
        awaits: Sequence[str] = (),
    ) -> None:
        """See agent.ports.ThreadChannel."""
        await self._release_soon()
        self._telemetry.note_status("parked")
        spans = self._telemetry.take_records()
        await self._inner.park([*payloads, *spans], turn_id=turn_id, until_ms=until_ms, awaits=awaits)
        self._telemetry.end_turn()

    def live(self, msg: LiveMsg, *, turn_id: str | None = None) -> None:
        """See agent.ports.ThreadChannel."""
        self._inner.live(msg, turn_id=turn_id)

    async def record(self, *payloads: LinePayload) -> None:
        """Commit records of the worker itself within the running turn. LeaseLost."""
        await self.commit([self._redactor.payload(payload) for payload in payloads], turn_id=self._telemetry.turn_id)

    def show(self, msg: LiveMsg) -> None:
        """Show something of the worker itself now."""
        self._inner.live(self._redactor.payload(msg), turn_id=self._telemetry.turn_id)

    async def hand_over(self) -> None:
        """Give the thread to whichever worker claims it next. LeaseLost when it is gone already."""
        await self._release_soon()
        self._telemetry.note_status("handed_over")
        spans = self._telemetry.take_records()
        await self._inner.hand_over(spans, turn_id=self._telemetry.turn_id)
        self._telemetry.end_turn()

    async def _release_soon(self) -> None:
        if self.before_release is not None:
            await self.before_release()


def _status(payloads: Sequence[LinePayload]) -> str:
    for payload in payloads:
        if isinstance(payload, TurnFailed):
            return TurnStatus.FAILED.value
        if isinstance(payload, TurnInterrupted):
            return TurnStatus.INTERRUPTED.value
    return TurnStatus.COMPLETED.value
