"""A task whose worker reaches the model over a WebSocket, or over Chat Completions with a key header."""

import asyncio
from pathlib import Path

import pytest

from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.events import TurnFailed
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
                assert (service.model.upgrades, service.model.prewarms) == (1, 1)
            assert service.model.violations.all() == ()
            records = [line.payload for line in await task.lines() if isinstance(line, ModelRequestLine)]
            assert {record.transport for record in records} == {"websocket" if way == "websocket" else "sse"}

    asyncio.run(main())


def test_a_budget_of_money_with_the_price_of_the_environment(tmp_path: Path) -> None:
    """A million tokens read for 1 dollar, half of it from the cache for 0.25, and 100,000 written for 10 a million."""
    usage = {"input_tokens": 1_000_000, "cached_input_tokens": 500_000, "output_tokens": 100_000}
    spends = {"items": [{"call": "exec_command", "arguments": {"cmd": "true"}}], "usage": usage}
    script = Script.model_validate({"steps": [spends, {"items": [{"message": "That is all."}]}]})
    price = {"INPUT": "1", "CACHED_INPUT": "0.25", "OUTPUT": "10"}

    async def main() -> None:
        async with running_service(tmp_path, script) as service:
            await service.start_worker(**{f"PATCHYARD_MODEL_PRICE_{kind}": value for kind, value in price.items()})
            asked = {"repository": {"type": "none"}, "instruction": "spend", "approval": "never", "budgets": {"cost_usd": 1.5}}
            task = await service.create(asked)
            (end,) = [event for event in await task.ended() if isinstance(event, TurnFailed)]
            assert end.error.code is ErrorCode.BUDGET_EXCEEDED
            records = [line.payload for line in await task.lines() if isinstance(line, ModelRequestLine)]
            assert records[0].cost_usd == pytest.approx(0.5 + 0.125 + 1.0)
            assert end.cost_usd == pytest.approx(sum(record.cost_usd or 0 for record in records))

    asyncio.run(main())
