"""Tasks from submission to their end, with everything real but the model."""

import asyncio
import io
import subprocess
import tarfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from patchyard.protocol.events import (
    DurableMsg,
    ItemCompleted,
    PatchProduced,
    SetupCompleted,
    SetupStarted,
    TaskStatusChanged,
    TurnFailed,
    VerificationCompleted,
)
from patchyard.protocol.items import FileChangeItem, ItemStatus
from patchyard.protocol.ops import Interrupt, TextInput, TurnInput
from patchyard.protocol.rollout_lines import ModelRequestLine, SpanLine
from patchyard.protocol.tasks import TaskStatus, VerifyResult
from patchyard.replay import Script
from patchyard.rollout import build_trace
from tests.waiting import wait_for

from .repositories import BETTER_FIX, FIX, TEST, VERIFY, WRONG_FIX, buggy_repository
from .service import Service, Task, running_service

pytestmark = [pytest.mark.engine, pytest.mark.redis, pytest.mark.timeout(300)]


def call(cmd: str) -> dict[str, Any]:
    return {"items": [{"call": "exec_command", "arguments": {"cmd": cmd}}]}


def patch(text: str) -> dict[str, Any]:
    return {"items": [{"custom": "apply_patch", "input": text}]}


def say(text: str) -> dict[str, Any]:
    return {"items": [{"message": text}]}


def script(**threads: list[dict[str, Any]]) -> Script:
    """Steps by a word of the instruction."""
    matched = [{"match": {"contains": f"case {name}."}, "steps": steps} for name, steps in threads.items()]
    return Script.model_validate({"threads": matched})


def spec(repository: Path | None, case: str, **more: Any) -> dict[str, Any]:
    source = {"type": "git", "url": str(repository)} if repository else {"type": "none"}
    return {"repository": source, "instruction": f"case {case}. add() subtracts", "approval": "never", **more}


def run(tmp_path: Path, scripted: Script, body: Callable[[Service], Awaitable[None]], *, workers: int = 1) -> None:
    async def main() -> None:
        async with running_service(tmp_path, scripted) as service:
            for _ in range(workers):
                await service.start_worker()
            await body(service)
        wait_for(lambda: service.containers() == [], "the engine has removed the boxes")
        assert "Traceback" not in service.logs(), service.logs()
        assert "sk-test-secret" not in service.logs()

    asyncio.run(main())


def results(events: list[DurableMsg]) -> list[VerifyResult]:
    return [event.result for event in events if isinstance(event, VerificationCompleted)]


def states(events: list[DurableMsg]) -> list[tuple[TaskStatus, str]]:
    return [(event.status, event.reason) for event in events if isinstance(event, TaskStatusChanged)]


async def ended(service: Service, task: dict[str, Any]) -> tuple[Task, list[DurableMsg]]:
    created = await service.create(task)
    return created, await created.ended()


def test_a_bug_becomes_a_verified_patch(tmp_path: Path) -> None:
    scripted = script(good=[call("cat calc.py; python3 -m pytest -q; git status --short"), patch(FIX), say("Fixed.")])

    async def body(service: Service) -> None:
        task, events = await ended(service, spec(buggy_repository(tmp_path), "good", verify={"command": VERIFY}))
        (made,) = [event.patch for event in events if isinstance(event, PatchProduced)]
        assert (made.files, made.insertions, made.deletions) == (1, 1, 1)
        assert b"+    return a + b" in await service.artefact(made)
        (result,) = results(events)
        assert (result.passed, result.exit_code) == (True, 0), result.output_tail
        assert states(events) == [(TaskStatus.VERIFYING, "verifying"), (TaskStatus.SUCCEEDED, "verified")]
        view = await service.task_view(task)
        assert (view.status, view.verified, view.final_message) == (TaskStatus.SUCCEEDED, True, "Fixed.")

        lines = await task.lines()
        spans = {line.payload.name for line in lines if isinstance(line, SpanLine)}
        assert {"patchyard.workspace", "patchyard.sandbox.start", "patchyard.diff"} <= spans
        requests = [line.payload for line in lines if isinstance(line, ModelRequestLine)]
        assert len(requests) == 3
        tree = build_trace(lines)
        assert tree.trace_id == "0af7651916cd43dd8448eb211c80319c"
        assert {entry.headers["traceparent"].split("-")[1] for entry in service.model.log.all()} == {tree.trace_id}

    run(tmp_path, scripted, body)


def test_a_fix_by_the_program_inside_a_command(tmp_path: Path) -> None:
    later = "mkdir -p notes; cd notes && apply_patch <<'EOF'\n" + FIX.replace("calc.py", "../calc.py") + "EOF\n"
    scripted = script(program=[call(later), say("Fixed.")])

    async def body(service: Service) -> None:
        _, events = await ended(service, spec(buggy_repository(tmp_path), "program", verify={"command": VERIFY}))
        (change,) = [e.item for e in events if isinstance(e, ItemCompleted) and isinstance(e.item, FileChangeItem)]
        assert (change.status, [one.path for one in change.changes]) == (ItemStatus.COMPLETED, ["calc.py"])
        (result,) = results(events)
        assert (result.passed, result.exit_code) == (True, 0), result.output_tail

    run(tmp_path, scripted, body)


def test_verification(tmp_path: Path) -> None:
    scripted = script(
        second=[patch(WRONG_FIX), say("Done."), patch(BETTER_FIX), say("Now.")],
        never=[patch(WRONG_FIX), say("Done."), say("I can't do better.")],
        missing=[patch(FIX), say("Done.")],
        nothing=[say("Nothing to do.")],
        hidden=[patch(FIX), say("Done."), say("I don't know.")],
        late=[patch(FIX), say("Done."), say("I don't know.")],
    )

    async def body(service: Service) -> None:
        repository = buggy_repository(tmp_path)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            hidden = TEST.replace("== 5", "== 6").encode()
            info = tarfile.TarInfo("tests/test_hidden.py")
            info.size = len(hidden)
            tar.addfile(info, io.BytesIO(hidden))
        overlay = await service.upload(buffer.getvalue())
        check = {"command": VERIFY}
        outcomes = await asyncio.gather(
            ended(service, spec(repository, "second", verify=check)),
            ended(service, spec(repository, "never", verify=check)),
            ended(service, spec(repository, "missing", verify={"command": "no-such-tool --run"})),
            ended(service, spec(repository, "nothing", verify={"command": "true"})),
            ended(service, spec(repository, "hidden", verify={**check, "overlay_artefact_id": overlay})),
            ended(service, spec(repository, "late", verify={"command": "sleep 60", "timeout_s": 1})),
        )
        second, never, missing, nothing, hidden_, late = [events for _, events in outcomes]
        assert [(r.round, r.passed) for r in results(second)] == [(1, False), (2, True)]
        assert states(second)[-1] == (TaskStatus.SUCCEEDED, "verified")
        assert "assert 6 == 5" in results(second)[0].output_tail

        assert [(r.round, r.passed, r.exit_code) for r in results(never)] == [(1, False, 1)]
        assert states(never)[-1] == (TaskStatus.FAILED, "verification_failed")
        assert any(isinstance(event, PatchProduced) for event in never)

        assert states(missing)[-1] == (TaskStatus.FAILED, "verify_tool_missing")
        assert "no-such-tool" in [e.error.message for e in missing if isinstance(e, TaskStatusChanged) and e.error][-1]

        assert states(nothing)[-1] == (TaskStatus.SUCCEEDED, "no_change")
        assert not any(isinstance(event, PatchProduced) for event in nothing)

        assert "test_hidden.py" in results(hidden_)[0].output_tail
        assert states(hidden_)[-1] == (TaskStatus.FAILED, "verification_failed")

        assert results(late)[0].exit_code is None
        log = results(late)[0].log_artefact_id
        assert log is not None
        assert await service.store.get(f"default/artefacts/{log}") == b""

    run(tmp_path, scripted, body)


def test_set_up_is_shared_and_cached(tmp_path: Path) -> None:
    steps = [call("cat /opt/venv/marker"), say("Done.")]
    scripted = script(first=steps, again=steps, broken=[call("true"), say("Done.")])
    setup = {"command": "echo ready-$(cat calc.py | wc -l) > /opt/venv/marker"}

    async def body(service: Service) -> None:
        repository = buggy_repository(tmp_path)
        verify = {"command": "test -f /opt/venv/marker"}
        _, first = await ended(service, spec(repository, "first", setup=setup, verify=verify))
        _, again = await ended(service, spec(repository, "again", setup=setup, verify=verify))
        broken_setup = {"command": "echo no luck; exit 3"}
        _, broken = await ended(service, spec(repository, "broken", setup=broken_setup))
        try:
            assert [event.cached for event in first if isinstance(event, SetupStarted)] == [False]
            assert [event.cached for event in again if isinstance(event, SetupStarted)] == [True]
            assert states(first)[-1] == states(again)[-1] == (TaskStatus.SUCCEEDED, "no_change")
            failed = [event for event in broken if isinstance(event, TurnFailed)]
            assert [event.error.code for event in failed] == ["setup_failed"]
            assert "no luck" in next(event.output_tail for event in broken if isinstance(event, SetupCompleted))
        finally:
            image = next(event.image for event in first if isinstance(event, SetupCompleted))
            await asyncio.to_thread(subprocess.run, ["docker", "rmi", "-f", str(image)], check=False, capture_output=True)

    run(tmp_path, scripted, body)


def test_bad_input_gives_one_clear_error(tmp_path: Path) -> None:
    scripted = script(revision=[say("x")], folder=[say("x")], protocol=[say("x")])

    async def body(service: Service) -> None:
        repository = buggy_repository(tmp_path)
        plain = tmp_path / "plain"
        plain.mkdir()
        outcomes = await asyncio.gather(
            ended(service, spec(repository, "revision", base="mian")),
            ended(service, spec(plain, "folder")),
            ended(service, {**spec(None, "protocol"), "repository": {"type": "git", "url": "http://example.org/x"}}),
        )
        errors = [event.error for _, events in outcomes for event in events if isinstance(event, TurnFailed)]
        assert [error.code for error in errors] == ["revision_not_found", "repository_not_found", "repository_not_allowed"]
        assert "Did you mean: main?" in errors[0].message
        assert "git init" in errors[1].message
        assert "https" in errors[2].message
        assert all(states(events)[-1][0] is TaskStatus.FAILED for _, events in outcomes)

    run(tmp_path, scripted, body)


def test_interrupt_keeps_the_work_and_a_later_turn_goes_on(tmp_path: Path) -> None:
    scripted = script(long=[patch(FIX), call("sleep 120"), call("cat calc.py; git diff --stat"), say("Went on.")])

    async def body(service: Service) -> None:
        task = await service.create(spec(buggy_repository(tmp_path), "long"))
        await task.wait_for("item_started", count=3)
        await task.ask(Interrupt())
        events = await task.ended()
        assert events[-1].type == "turn_interrupted" or "turn_interrupted" in [event.type for event in events]
        assert states(events)[-1] == (TaskStatus.CANCELLED, "interrupted")
        (made,) = [event.patch for event in events if isinstance(event, PatchProduced)]
        assert b"+    return a + b" in await service.artefact(made)
        await task.ask(TurnInput(items=(TextInput(text="go on"),)))
        events = await task.wait_for("turn_completed")
        assert states(events)[-1] == (TaskStatus.SUCCEEDED, "completed")
        outputs = [
            e.item.aggregated_output for e in events if e.type == "item_completed" and e.item.type == "command_execution"
        ]
        assert "return a + b" in str(outputs[-1])

    run(tmp_path, scripted, body)
