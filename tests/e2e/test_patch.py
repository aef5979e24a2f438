import asyncio
from pathlib import Path

import pytest

from patchyard.protocol.events import PatchProduced, TaskStatusChanged, VerificationCompleted
from patchyard.protocol.tasks import TaskStatus
from patchyard.replay import Script

from .repositories import FIX, VERIFY, buggy_repository
from .service import running_service

pytestmark = [pytest.mark.engine, pytest.mark.redis, pytest.mark.timeout(120)]


def test_a_bug_becomes_a_verified_patch(tmp_path: Path) -> None:
    script = Script.model_validate(
        {
            "steps": [
                {"items": [{"call": "exec_command", "arguments": {"cmd": "cat calc.py; python3 -m pytest -q; git status --short"}}]},
                {"items": [{"custom": "apply_patch", "input": FIX}]},
                {"items": [{"message": "Fixed."}]},
            ]
        }
    )

    async def run() -> None:
        async with running_service(tmp_path, script) as service:
            await service.start_worker()
            task = await service.create(
                {
                    "repository": {"type": "git", "url": str(buggy_repository(tmp_path))},
                    "instruction": "add() subtracts",
                    "approval": "never",
                    "verify": {"command": VERIFY},
                }
            )
            events = await task.ended()
            kinds = [event.type for event in events]
            assert kinds[-2:] == ["task_status_changed", "turn_completed"] or kinds[-1] == "turn_completed", kinds
            (patch,) = [event.patch for event in events if isinstance(event, PatchProduced)]
            assert (patch.files, patch.insertions, patch.deletions) == (1, 1, 1)
            data = await service.artefact(patch)
            assert b"+    return a + b" in data
            (verified,) = [event.result for event in events if isinstance(event, VerificationCompleted)]
            assert (verified.passed, verified.exit_code) == (True, 0), verified.output_tail
            states = [(event.status, event.reason) for event in events if isinstance(event, TaskStatusChanged)]
            assert states == [(TaskStatus.VERIFYING, "verifying"), (TaskStatus.SUCCEEDED, "verified")]
            view = await service.task_view(task)
            assert (view.status, view.verified) == (TaskStatus.SUCCEEDED, True)

    asyncio.run(run())
