"""What a turn owes when it ends: the patch, its verification, and the task's state. The agent's TurnGate."""

import asyncio
import logging
from collections.abc import Sequence
from typing import assert_never

from observability import Attr, Metric, Metrics, ThreadTelemetry
from observability.names import DIFF, VERIFY
from patchyard.adapters.store import StoreError
from patchyard.adapters.workspace import Patch, PatchRefused, WorkspaceError, lay_overlay, lay_patch
from patchyard.agent.errors import TurnError
from patchyard.agent.ports import SandboxError, TurnOutcome
from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.events import (
    DurableMsg,
    PatchProduced,
    SetupOutputDelta,
    TaskStatusChanged,
    VerificationCompleted,
    VerificationStarted,
    Warning_,
)
from patchyard.protocol.tasks import PatchSummary, TaskSpec, TaskStatus, TurnStatus, VerifyResult, VerifySpec

from .artefacts import Artefacts, patiently
from .boxes import TurnBoxes
from .channel import WorkerChannel
from .verification import VerifyRun, feedback, missing_tool, run_verify, tail

log = logging.getLogger(__name__)

_INFRASTRUCTURE = (WorkspaceError, SandboxError, StoreError)


class Delivery:
    """Implements agent.ports.TurnGate for one claimed thread."""

    def __init__(
        self,
        *,
        tenant_id: str,
        spec: TaskSpec,
        rounds: int,
        rounds_done: int,
        boxes: TurnBoxes,
        channel: WorkerChannel,
        artefacts: Artefacts,
        telemetry: ThreadTelemetry,
        metrics: Metrics,
    ) -> None:
        self._tenant_id = tenant_id
        self._spec = spec
        self._rounds = rounds
        self._round = rounds_done
        self._boxes = boxes
        self._channel = channel
        self._artefacts = artefacts
        self._telemetry = telemetry
        self._metrics = metrics
        self._patch: Patch | None = None
        self._stored: bytes | None = None
        self._checked: bytes | None = None
        self._verdict: VerifyResult | None = None

    async def before_complete(self, outcome: TurnOutcome) -> str | None:
        """Patch, then verification. Text: the verify command failed and a round is left. TurnError: it can't be told."""
        del outcome
        try:
            patch = await self._take_patch()
            for event in await patiently(lambda: self._store_patch(patch)):
                await self._channel.record(event)
            if self._spec.verify is None:
                return None
            if self._verdict is not None and patch.data == self._checked:
                return None  # the agent finished again without a change: the verdict stands
            return await self._verify_or_forget(self._spec.verify, patch)
        except _INFRASTRUCTURE as error:
            raise TurnError(error.info) from error

    async def at_end(self, outcome: TurnOutcome) -> Sequence[DurableMsg]:
        """The task's last state; of a turn that ended badly, or that was no regular one, also the work so far."""
        events: list[DurableMsg] = []
        regular = outcome.kind == "regular"
        if outcome.status is not TurnStatus.COMPLETED or (not regular and outcome.changed_files):
            try:
                events += await self._store_patch(await self._take_patch())
            except _INFRASTRUCTURE as error:
                if outcome.changed_files:
                    log.warning("the work of turn %s could not be kept: %s", outcome.turn_id, error)
                    events.append(Warning_(message=f"The work so far could not be stored: {error}"))
        self._metrics.add(Metric.TURNS, labels={"status": outcome.status.value})
        if regular:
            events.append(self._task_state(outcome))
        return events

    def _task_state(self, outcome: TurnOutcome) -> TaskStatusChanged:
        match outcome.status:
            case TurnStatus.FAILED:
                error = outcome.error or ErrorInfo.of(ErrorCode.INTERNAL, "The turn failed without a reason.")
                return TaskStatusChanged(status=TaskStatus.FAILED, reason=error.code.value, error=error)
            case TurnStatus.INTERRUPTED:
                return TaskStatusChanged(status=TaskStatus.CANCELLED, reason=ErrorCode.INTERRUPTED.value)
            case TurnStatus.COMPLETED | TurnStatus.IN_PROGRESS:
                verdict = self._verdict
                if verdict is not None and not verdict.passed:
                    error = verdict.error or _not_verified(verdict)
                    return TaskStatusChanged(status=TaskStatus.FAILED, reason=error.code.value, error=error)
                empty = self._patch is None or self._patch.empty
                reason = ErrorCode.NO_CHANGE.value if empty else "verified" if verdict is not None else "completed"
                return TaskStatusChanged(status=TaskStatus.SUCCEEDED, reason=reason)
            case _:
                assert_never(outcome.status)

    async def _take_patch(self) -> Patch:
        with self._telemetry.span(DIFF, key=f"diff/{self._round + 1}") as span:
            self._patch = await self._boxes.diff()
            span.set(**{Attr.FILES.value: self._patch.files, Attr.BYTES.value: len(self._patch.data)})
        return self._patch

    async def _store_patch(self, patch: Patch) -> list[DurableMsg]:
        """Events to tell of a patch that was not told yet."""
        await self._boxes.keep(patch)
        if patch.data == (self._stored or b""):
            return []
        artefact_id = await self._artefacts.put(self._tenant_id, patch.data)
        self._stored = patch.data
        summary = PatchSummary(
            artefact_id=artefact_id,
            files=patch.files,
            insertions=patch.insertions,
            deletions=patch.deletions,
            bytes=len(patch.data),
        )
        events: list[DurableMsg] = [PatchProduced(patch=summary)]
        if patch.left_out:
            names = ", ".join(patch.left_out[:5])
            events.append(Warning_(message=f"Repositories inside the work tree are not part of the patch: {names}."))
        return events

    async def _verify_or_forget(self, verify: VerifySpec, patch: Patch) -> str | None:
        """A run that is cut off (the turn's time is over, and it may get more) is none: as after the loss of a worker."""
        done = self._round
        try:
            return await self._verify(verify, patch)
        except asyncio.CancelledError:
            if self._verdict is None or self._verdict.round <= done:
                self._round = done
            raise

    async def _verify(self, verify: VerifySpec, patch: Patch) -> str | None:
        self._round += 1
        await self._channel.record(
            TaskStatusChanged(status=TaskStatus.VERIFYING, reason="verifying"),
            VerificationStarted(round=self._round, command=verify.command),
        )
        with self._telemetry.span(VERIFY, key=f"verify/{self._round}", attributes={Attr.ROUND.value: self._round}) as span:
            run = await self._run(verify, patch)
            result = await self._judge(verify, run)
            span.set(**{Attr.PASSED.value: result.passed, Attr.EXIT_CODE.value: result.exit_code})
        self._metrics.add(Metric.VERIFICATIONS, labels={"passed": str(result.passed).lower()})
        self._verdict, self._checked = result, patch.data
        await self._channel.record(VerificationCompleted(result=result))
        left = self._rounds - self._round
        if result.passed or left <= 0 or isinstance(run, ErrorInfo) or result.error is not None:
            return None
        await self._channel.record(TaskStatusChanged(status=TaskStatus.RUNNING, reason=ErrorCode.VERIFICATION_FAILED.value))
        return feedback(verify.command, run, rounds_left=left)

    async def _run(self, verify: VerifySpec, patch: Patch) -> VerifyRun | ErrorInfo:
        """The run, or why the patch could not even be laid out."""
        overlay = None
        if verify.overlay_artefact_id is not None:
            wanted = verify.overlay_artefact_id
            overlay = await patiently(lambda: self._artefacts.get(self._tenant_id, wanted))
        async with self._boxes.fresh() as box:
            try:
                await lay_patch(box, patch.data)
                if overlay is not None:
                    await lay_overlay(box, overlay)
            except PatchRefused as error:
                return error.info
            return await run_verify(
                box,
                verify.command,
                timeout_s=verify.timeout_s,
                show=lambda text: self._channel.show(SetupOutputDelta(phase="verify", delta=text)),
            )

    async def _judge(self, verify: VerifySpec, run: VerifyRun | ErrorInfo) -> VerifyResult:
        if isinstance(run, ErrorInfo):
            return VerifyResult(passed=False, exit_code=None, round=self._round, error=run, output_tail=tail(run.message))
        error = None if run.passed else missing_tool(verify.command, run)
        return VerifyResult(
            passed=run.passed,
            exit_code=run.exit_code,
            round=self._round,
            log_artefact_id=await patiently(lambda: self._artefacts.put(self._tenant_id, run.log)),
            output_tail=tail(run.text()),
            duration_ms=run.duration_ms,
            error=error,
        )


def _not_verified(result: VerifyResult) -> ErrorInfo:
    how = "ran out of time" if result.exit_code is None else f"ended with exit code {result.exit_code}"
    return ErrorInfo.of(
        ErrorCode.VERIFICATION_FAILED,
        f"The verify command {how} in round {result.round}. The patch is kept; its log says what failed.",
    )
