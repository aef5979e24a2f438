"""A task whose worker reaches the model over a WebSocket, or over Chat Completions with a key header."""

import asyncio
from pathlib import Path

import pytest

from patchyard.protocol.rollout_lines import ModelRequestLine
from patchyard.replay import Script

from .service import running_service

pytestmark = [pytest.mark.engine, pytest.mark.redis, pytest.mark.timeout(300)]

SCRIPT = Script.model_validate(
    {
        "steps": [
            {"items": [{"call": "exec_command", "arguments": {"cmd": "echo one > notes.txt"}}]},
            {"items": [{"call": "exec_command", "arguments": {"cmd": "cat notes.txt"}}]},
            {"items": [{"message": "There."}]},
        ]
    }
)


@pytest.mark.parametrize("way", ["websocket", "chat"])
def test_a_task(tmp_path: Path, way: str) -> None:
    async def main() -> None:
        async with running_service(tmp_path, SCRIPT) as service:
            way_env = {"websocket": {"PATCHYARD_MODEL_WEBSOCKETS": "true"}, "chat": {"PATCHYARD_MODEL_WIRE_API": "chat"}}[way]
            await service.start_worker(**way_env)
            task = await service.create({"repository": {"type": "none"}, "instruction": "write", "approval": "never"})
            events = await task.ended()
            assert any(event.type == "turn_completed" for event in events)
            entries = service.model.log.all()
            assert [entry.wire for entry in entries] == [way] * 3
            if way == "websocket":
                assert [entry.new_items for entry in entries[1:]] == [1, 1]
                assert service.model.upgrades == 1
            assert service.model.violations.all() == ()
            records = [line.payload for line in await task.lines() if isinstance(line, ModelRequestLine)]
            assert {record.transport for record in records} == {"websocket" if way == "websocket" else "sse"}

    asyncio.run(main())
