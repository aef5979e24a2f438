"""A context window that fills up in a real service: worker processes, Redis, boxes, and a model that checks each window."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from patchyard.protocol.ops import Compact
from patchyard.protocol.rollout_lines import CompactedLine
from patchyard.protocol.tasks import TaskStatus

from .repositories import FIX, VERIFY, buggy_repository
from .service import Task, lose, running_service
from .test_patch import call, patch, say, script, spec

pytestmark = [pytest.mark.engine, pytest.mark.redis, pytest.mark.timeout(300)]

FULL = {"usage": {"input_tokens": 9_000, "output_tokens": 50}}
SMALL = {"PATCHYARD_MODEL_CONTEXT_WINDOW": "10000"}


async def windows(task: Task) -> list[CompactedLine]:
    return [line for line in await task.lines() if isinstance(line, CompactedLine)]


def test_a_task_goes_on_in_a_new_window_and_an_idle_thread_compacts_when_asked(tmp_path: Path) -> None:
    look = call("cat calc.py")
    steps = [{**look, **FULL}, say("calc.py: add() subtracts. Next: patch."), patch(FIX), say("Fixed."), say("All done.")]

    async def main() -> None:
        async with running_service(tmp_path, script(long=steps)) as service:
            await service.start_worker(**SMALL)
            task = await service.create(spec(buggy_repository(tmp_path), "long", verify={"command": VERIFY}))
            await task.ended()
            view = await service.task_view(task)
            assert (view.status, view.verified) == (TaskStatus.SUCCEEDED, True)
            (window,) = await windows(task)
            assert (window.payload.reason, window.payload.method) == ("context_limit", "local")
            assert window.payload.summary == "calc.py: add() subtracts. Next: patch."

            await task.ask(Compact())
            await task.wait_for("turn_completed", count=2)
            assert [line.payload.reason for line in await windows(task)] == ["context_limit", "manual"]
            assert (await service.task_view(task)).status is TaskStatus.SUCCEEDED
            kinds = [entry.kind for entry in service.model.log.all()]
            assert kinds == ["turn", "compaction", "turn", "turn", "compaction"]

    asyncio.run(main())


def test_a_worker_that_dies_while_it_compacts(tmp_path: Path) -> None:
    slow: dict[str, Any] = {**say("never read"), "delay_ms": 60_000}
    steps = [{**call("cat calc.py"), **FULL}, slow, say("The summary."), patch(FIX), say("Fixed.")]

    async def main() -> None:
        async with running_service(tmp_path, script(dies=steps)) as service:
            first = await service.start_worker(**SMALL)
            task = await service.create(spec(buggy_repository(tmp_path), "dies", verify={"command": VERIFY}))
            while [entry.kind for entry in service.model.log.all()] != ["turn", "compaction"]:
                await service.news_or(0.2)
            first.send_signal(signal.SIGKILL)
            first.wait()
            await lose(service.queue, task.thread_id)
            await service.start_worker(**SMALL)
            await task.ended()
            assert (await service.task_view(task)).verified is True
            (window,) = await windows(task)
            assert window.payload.summary == "The summary."
            done = [
                e.item.status for e in await task.events() if e.type == "item_completed" and e.item.type == "context_compaction"
            ]
            assert done == ["interrupted", "completed"]

    asyncio.run(main())


def test_the_model_ends_its_window_itself_and_goes_on_with_its_notes(tmp_path: Path) -> None:
    hooks = {
        "PreCompact": [{"matcher": "auto", "command": "cat > /tmp/before.json"}],
        "PostCompact": [{"command": "cat > /tmp/after.json"}],
    }
    notes = {"notes": "add() in calc.py subtracts; patch line 2."}
    steps = [
        call("cat calc.py"),
        {"items": [{"call": "get_context_remaining", "arguments": {}}], "usage": {"input_tokens": 76_000, "output_tokens": 0}},
        {
            "items": [{"call": "new_context_window", "arguments": notes}],
            "expect": {"contains": ["About 4000 tokens are left", "<context_window>\nOnly about "]},
        },
        {
            **call("cat /tmp/before.json /tmp/after.json"),
            "expect": {"contains": ["<new_context_window>", notes["notes"], "case own. add() subtracts"]},
        },
        {**patch(FIX), "expect": {"contains": ['"hook_event_name": "PreCompact"', '"hook_event_name": "PostCompact"']}},
        say("Fixed."),
    ]

    async def main() -> None:
        async with running_service(tmp_path, script(own=steps)) as service:
            await service.start_worker(PATCHYARD_COMPACTION="token_budget", PATCHYARD_MODEL_CONTEXT_WINDOW="100000")
            task = await service.create(spec(buggy_repository(tmp_path), "own", verify={"command": VERIFY}, hooks=hooks))
            await task.ended()
            view = await service.task_view(task)
            assert (view.status, view.verified) == (TaskStatus.SUCCEEDED, True)
            (window,) = await windows(task)
            assert (window.payload.reason, window.payload.window_number) == ("model_asked", 1)
            entries = service.model.log.all()
            assert [entry.headers["x-patchyard-window"].rsplit(":", 1)[1] for entry in entries] == ["0"] * 3 + ["1"] * 3
            assert {entry.kind for entry in entries} == {"turn"}

    asyncio.run(main())
