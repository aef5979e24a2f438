import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace import TracerProvider

from observability import Metrics, Observability, ThreadTelemetry
from observability.ids import DerivedIds
from patchyard.adapters.sandbox import EngineUnavailable
from patchyard.adapters.workspace import DiskFull, Patch
from patchyard.agent.errors import TurnError
from patchyard.agent.ports import ExitStatus, TurnOutcome
from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.events import DurableMsg, PatchProduced, TaskStatusChanged, VerificationCompleted, Warning_
from patchyard.protocol.model_items import TokenUsage
from patchyard.protocol.tasks import NoSource, TaskSpec, TaskStatus, TurnStatus, VerifySpec
from patchyard.testing.store import MemoryStore
from workers.running.artefacts import Artefacts
from workers.running.delivery import Delivery

from .test_verification import Box, Process

GOOD = Patch(b"good", 1, 2, 3)
BAD = Patch(b"bad", 1, 1, 1)
NONE = Patch(b"", 0, 0, 0)


class Boxes:
    """Stands for TurnBoxes: the next patches, and how the verify command ends in each fresh box."""

    def __init__(self, patches: list[Patch | Exception], codes: list[int | Exception]) -> None:
        self.patches = patches
        self.codes = codes
        self.kept: list[bytes] = []
        self.fresh_boxes = 0

    async def diff(self) -> Patch:
        patch = self.patches.pop(0)
        if isinstance(patch, Exception):
            raise patch
        return patch

    async def keep(self, patch: Patch) -> None:
        self.kept.append(patch.data)

    @asynccontextmanager
    async def fresh(self) -> AsyncIterator[Box]:
        self.fresh_boxes += 1
        code = self.codes.pop(0)
        if isinstance(code, Exception):
            raise code
        yield _BoxForAll(code)


class _BoxForAll(Box):
    """Applies every patch; the verify command ends with this code."""

    def __init__(self, code: int) -> None:
        super().__init__(Process([], ExitStatus(code=0)))
        self.code = code

    async def spawn(self, request: Any, *, on_patch: object = None) -> Process:
        verify = request.argv[0] == "/bin/bash"
        process = Process([b"output\n"] if verify else [], ExitStatus(code=self.code if verify else 0))
        process.write = _swallow  # type: ignore[method-assign]
        return process


async def _swallow(data: bytes, *, eof: bool = False) -> None:
    pass


class Channel:
    def __init__(self) -> None:
        self.events: list[DurableMsg] = []

    async def record(self, *payloads: DurableMsg) -> None:
        self.events += payloads

    def show(self, msg: object) -> None:
        pass


class Kit:
    def __init__(
        self, patches: list[Patch | Exception], codes: list[int | Exception], *, verify: bool = True, rounds_done: int = 0
    ) -> None:
        self.boxes, self.channel, self.store = Boxes(patches, codes), Channel(), MemoryStore()
        ids = DerivedIds()
        metrics = Metrics(NoOpMeterProvider().get_meter("t"))
        observability = Observability(TracerProvider(id_generator=ids, shutdown_on_exit=False).get_tracer("t"), ids, metrics)
        spec = TaskSpec(
            repository=NoSource(), instruction="x", verify=VerifySpec(command="check it", timeout_s=5) if verify else None
        )
        self.gate = Delivery(
            tenant_id="default",
            spec=spec,
            rounds=3,
            rounds_done=rounds_done,
            boxes=self.boxes,  # type: ignore[arg-type]
            channel=self.channel,  # type: ignore[arg-type]
            artefacts=Artefacts(self.store),
            telemetry=ThreadTelemetry(observability, {}),
            metrics=metrics,
        )

    async def end(self, status: TurnStatus = TurnStatus.COMPLETED, error: ErrorInfo | None = None) -> list[DurableMsg]:
        return list(await self.gate.at_end(outcome(status, error)))

    @property
    def kinds(self) -> list[str]:
        return [event.type for event in self.channel.events]


def outcome(status: TurnStatus = TurnStatus.COMPLETED, error: ErrorInfo | None = None) -> TurnOutcome:
    return TurnOutcome("turn", status, error, TokenUsage(), None, None, changed_files=True)


def test_patch_then_verification_then_success() -> None:
    async def run() -> None:
        kit = Kit([GOOD], [0])
        assert await kit.gate.before_complete(outcome()) is None
        assert kit.kinds == ["patch_produced", "task_status_changed", "verification_started", "verification_completed"]
        (patch,) = [event.patch for event in kit.channel.events if isinstance(event, PatchProduced)]
        assert await kit.store.get(f"default/artefacts/{patch.artefact_id}") == b"good"
        assert (patch.files, patch.insertions, patch.deletions, patch.bytes) == (1, 2, 3, 4)
        assert kit.boxes.kept == [b"good"]
        assert await kit.end() == [TaskStatusChanged(status=TaskStatus.SUCCEEDED, reason="verified")]

    asyncio.run(run())


def test_failing_output_is_steered_back_until_the_rounds_are_used_up() -> None:
    async def run() -> None:
        kit = Kit([BAD, Patch(b"worse", 1, 1, 1), Patch(b"worst", 1, 1, 1)], [1, 1, 1])
        told = [await kit.gate.before_complete(outcome()) for _ in range(3)]
        assert told[0] is not None
        assert "2 tries are left" in told[0]
        assert told[1] is not None
        assert "last try" in told[1]
        assert told[2] is None
        (state,) = await kit.end()
        assert isinstance(state, TaskStatusChanged)
        assert (state.status, state.reason) == (TaskStatus.FAILED, "verification_failed")
        assert state.error is not None
        assert state.error.code is ErrorCode.VERIFICATION_FAILED
        assert "round 3" in state.error.message
        rounds = [event.result.round for event in kit.channel.events if isinstance(event, VerificationCompleted)]
        assert rounds == [1, 2, 3]

    asyncio.run(run())


def test_rounds_of_an_earlier_worker_count() -> None:
    async def run() -> None:
        kit = Kit([BAD], [1], rounds_done=2)
        assert await kit.gate.before_complete(outcome()) is None
        (state,) = await kit.end()
        assert isinstance(state, TaskStatusChanged)
        assert state.status is TaskStatus.FAILED

    asyncio.run(run())


def test_a_run_that_is_cut_off_uses_no_round_up() -> None:
    async def run() -> None:
        kit = Kit([GOOD, GOOD], [])
        reached = asyncio.Event()

        @asynccontextmanager
        async def fresh() -> AsyncIterator[Box]:
            reached.set()
            await asyncio.Event().wait()
            yield _BoxForAll(0)

        kit.boxes.fresh, normal = fresh, kit.boxes.fresh  # type: ignore[method-assign]
        verifying = asyncio.create_task(kit.gate.before_complete(outcome()))
        await reached.wait()
        verifying.cancel()
        await asyncio.gather(verifying, return_exceptions=True)
        kit.boxes.fresh = normal  # type: ignore[method-assign]
        kit.boxes.codes = [0]
        assert await kit.gate.before_complete(outcome()) is None
        (result,) = [event.result for event in kit.channel.events if isinstance(event, VerificationCompleted)]
        assert (result.passed, result.round) == (True, 1)

    asyncio.run(run())


def test_an_unchanged_patch_is_not_verified_again() -> None:
    async def run() -> None:
        kit = Kit([BAD, BAD], [1])
        assert await kit.gate.before_complete(outcome()) is not None
        assert await kit.gate.before_complete(outcome()) is None
        assert kit.boxes.fresh_boxes == 1
        (state,) = await kit.end()
        assert isinstance(state, TaskStatusChanged)
        assert state.reason == "verification_failed"

    asyncio.run(run())


def test_no_change() -> None:
    async def run() -> None:
        plain = Kit([NONE], [], verify=False)
        assert await plain.gate.before_complete(outcome()) is None
        assert plain.kinds == []
        assert await plain.end() == [TaskStatusChanged(status=TaskStatus.SUCCEEDED, reason="no_change")]
        checked = Kit([NONE], [0])
        assert await checked.gate.before_complete(outcome()) is None
        assert checked.boxes.fresh_boxes == 1
        assert await checked.end() == [TaskStatusChanged(status=TaskStatus.SUCCEEDED, reason="no_change")]

    asyncio.run(run())


def test_a_missing_tool_is_not_the_agents_fault() -> None:
    async def run() -> None:
        kit = Kit([GOOD], [127])
        assert await kit.gate.before_complete(outcome()) is None
        (state,) = await kit.end()
        assert isinstance(state, TaskStatusChanged)
        assert state.reason == "verify_tool_missing"

    asyncio.run(run())


@pytest.mark.parametrize("fault", [DiskFull("testing"), EngineUnavailable("no engine")])
def test_what_keeps_it_from_being_told_fails_the_turn(fault: Exception) -> None:
    async def run() -> None:
        for kit in (Kit([fault], []), Kit([GOOD], [fault])):
            with pytest.raises(TurnError) as caught:
                await kit.gate.before_complete(outcome())
            assert caught.value.info == fault.info  # type: ignore[attr-defined]

    asyncio.run(run())


def test_a_turn_that_ends_badly_keeps_its_work() -> None:
    async def run() -> None:
        error = ErrorInfo.of(ErrorCode.BUDGET_EXCEEDED, "too much")
        kit = Kit([GOOD], [])
        events = await kit.end(TurnStatus.FAILED, error)
        assert [event.type for event in events] == ["patch_produced", "task_status_changed"]
        assert events[-1] == TaskStatusChanged(status=TaskStatus.FAILED, reason="budget_exceeded", error=error)
        stopped = await Kit([NONE], []).end(TurnStatus.INTERRUPTED)
        assert stopped == [TaskStatusChanged(status=TaskStatus.CANCELLED, reason="interrupted")]
        lost = await Kit([EngineUnavailable("gone")], []).end(TurnStatus.FAILED, error)
        assert isinstance(lost[0], Warning_)
        assert "could not be stored" in lost[0].message

    asyncio.run(run())


def test_repositories_that_a_patch_cannot_carry_are_named() -> None:
    async def run() -> None:
        kit = Kit([Patch(b"good", 1, 1, 1, left_out=("vendor/x",))], [], verify=False)
        await kit.gate.before_complete(outcome())
        (warning,) = [event for event in kit.channel.events if isinstance(event, Warning_)]
        assert "vendor/x" in warning.message

    asyncio.run(run())
