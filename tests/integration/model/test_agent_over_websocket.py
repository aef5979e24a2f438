"""The agent's own loop over a WebSocket: what it sends is only what is new, also after its thread was restored."""

import asyncio
from typing import Any

import pytest

from patchyard.adapters.model import ModelTransport, ProviderConfig, ResponsesClient
from patchyard.replay import ReplayServer, parse_script
from patchyard.testing.builders import turn_input
from patchyard.testing.harness import AgentHarness
from tests.waiting import WAIT_S
from workers.parts import SystemClock

SCRIPT = """
steps:
  - items:
      - {reasoning: Look first.}
      - {call: update_plan, arguments: {plan: [{step: look, status: in_progress}]}}
      - {call: update_plan, arguments: {plan: [{step: look, status: completed}]}}
  - items: [{call: no_such_tool, arguments: {}}]
  - items: [{message: Done.}]
  - items: [{message: Done again.}]
"""


def play(script: str, scene: Any, **options: Any) -> None:
    async def run() -> None:
        server = ReplayServer(parse_script(script), **options)
        await server.start()
        config = ProviderConfig(base_url=server.base_url, supports_websockets=True)
        try:
            async with asyncio.timeout(WAIT_S), ModelTransport() as transport:
                await scene(server, lambda: ResponsesClient(config, transport))
        finally:
            await server.close()

    asyncio.run(run())


def test_two_turns_and_a_restored_thread() -> None:
    async def scene(server: ReplayServer, client: Any) -> None:
        it = AgentHarness()
        it.clock = SystemClock()  # type: ignore[assignment]
        it.model = client()
        it.session = it.new_session()
        it.submit()
        await it.run()
        it.model = client()
        it.next_owner()
        it.submit(turn_input("once more"))
        await it.run()
        assert it.types().count("turn_completed") == 2
        assert server.violations.all() == ()
        entries = server.log.all()
        assert [entry.wire for entry in entries] == ["websocket"] * 4
        assert [entry.new_items for entry in entries[1:3]] == [2, 1]
        # The second turn tells the user's words and what changed around it, nothing of before.
        assert entries[3].new_items is not None
        assert entries[3].new_items < 4
        assert server.upgrades == 1
        records = [line.payload for line in it.channel.lines if line.type == "model_request"]
        assert {record.transport for record in records} == {"websocket"}

    play(SCRIPT, scene)


@pytest.mark.parametrize(("status", "warnings"), [(426, 0), (404, 1)])
def test_the_watchers_hear_of_the_other_way_only_when_it_matters(status: int, warnings: int) -> None:
    async def scene(server: ReplayServer, client: Any) -> None:
        it = AgentHarness()
        it.clock = SystemClock()  # type: ignore[assignment]
        it.model = client()
        it.session = it.new_session()
        it.submit()
        await it.run()
        assert it.types().count("turn_completed") == 1
        assert it.types().count("warning") == warnings
        assert {entry.wire for entry in server.log.all()} == {"sse"}

    play(SCRIPT, scene, upgrade_status=status)


TWICE = """
steps:
  - error: {status: 500, code: server_error, message: boom}
  - {items: [{message: cut off in the middle}], cut_after: 3}
  - error: {status: 500, code: server_error, message: boom}
  - items: [{message: Done.}]
"""


def test_attempts_are_numbered_through_both_layers_of_retries() -> None:
    async def scene(server: ReplayServer, client: Any) -> None:
        it = AgentHarness()
        it.clock = SystemClock()  # type: ignore[assignment]
        it.model = client()
        it.session = it.new_session()
        it.submit()
        await it.run()
        assert it.end().type == "turn_completed"
        records = [line.payload for line in it.channel.lines if line.type == "model_request"]
        assert [(record.attempt, record.error is None) for record in records] == [(1, False), (2, False), (3, False), (4, True)]

    play(TWICE, scene, upgrade_status=426)
