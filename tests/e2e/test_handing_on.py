"""A turn whose worker dies or has to go is one turn for everybody who watches."""

import asyncio
import signal
from pathlib import Path

import pytest

from patchyard.protocol.events import PatchProduced, TurnRecovered
from patchyard.protocol.tasks import TaskStatus
from tests.waiting import WAIT_S

from .repositories import FIX, VERIFY, buggy_repository
from .service import Service, lose
from .test_patch import call, patch, results, run, say, script, spec, states

pytestmark = [pytest.mark.engine, pytest.mark.redis, pytest.mark.timeout(300)]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_another_worker_finishes_the_turn(tmp_path: Path, how: signal.Signals) -> None:
    long = {"cmd": "echo half > half.txt; sleep 600", "yield_time_ms": 30_000}
    begun = {"items": [{"call": "exec_command", "arguments": long}]}
    scripted = script(lost=[begun, call("cat half.txt"), patch(FIX), say("Done.")])

    async def body(service: Service) -> None:
        first = service.workers[0]
        task = await service.create(spec(buggy_repository(tmp_path), "lost", verify={"command": VERIFY}))
        await task.wait_for("workspace_prepared")
        await _until_written(service)
        await service.start_worker()
        first.send_signal(how)
        await asyncio.to_thread(first.wait, WAIT_S)  # long before its command would have ended
        if how == signal.SIGKILL:
            await lose(service.queue, task.thread_id)
        events = await task.ended()
        kinds = [event.type for event in events]
        assert "turn_failed" not in kinds, [event for event in events if event.type == "turn_failed"]
        assert kinds.count("turn_started") == kinds.count("turn_completed") == 1
        assert kinds.count("turn_recovered") == 1, f"{events}\n{service.logs()}"
        (recovered,) = [event for event in events if isinstance(event, TurnRecovered)]
        assert recovered.reason == ("worker_lost" if how == signal.SIGKILL else "hand_over")
        started = [event.item.id for event in events if event.type == "item_started"]
        completed = [event.item.id for event in events if event.type == "item_completed"]
        assert sorted(started) == sorted(completed)
        assert len(set(started)) == len(started)
        (result,) = results(events) or [pytest.fail(f"{events}\n{service.logs()}")]
        assert result.passed, result.output_tail
        assert states(events)[-1] == (TaskStatus.SUCCEEDED, "verified")
        data = b"".join([await service.artefact(event.patch) for event in events if isinstance(event, PatchProduced)])
        assert b"half.txt" in data  # the work tree was taken over as it was
        assert {line.turn_id for line in await task.lines() if line.turn_id} == {task.turn_id}
        if how == signal.SIGTERM:
            assert first.returncode == 0

    run(tmp_path, scripted, body)


async def _until_written(service: Service) -> None:
    """Until the command has written its file into the work tree."""
    checkouts = service.settings.home / "workspaces" / "checkouts"
    async with asyncio.timeout(WAIT_S):
        while not list(checkouts.glob("*/workspace/half.txt")):
            await service.news_or(0.05)
