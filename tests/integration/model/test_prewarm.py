"""The socket is got ready while the box starts, and no request waits for it longer than for a socket of its own."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from patchyard.adapters.model import ModelTransport, ProviderConfig, ResponsesClient
from patchyard.adapters.model.config import ProviderLimits
from patchyard.agent.ports import ModelError, ModelNotice
from patchyard.protocol.errors import ErrorCode
from patchyard.replay import ReplayServer, builders, parse_script
from patchyard.testing.builders import spec, turn_input
from patchyard.testing.harness import AgentHarness
from patchyard.testing.scripted_sandbox import ScriptedSource
from tests.integration.model.test_websocket import CALLS, Scene, play, records, text_of, user
from tests.waiting import WAIT_S
from workers.parts import SystemClock


async def until(holds: Callable[[], object]) -> None:
    """Wait for what the other side does; the test's own time limit ends it."""
    while not holds():
        await asyncio.sleep(0)


def test_the_first_request_goes_on_from_what_was_told_before() -> None:
    async def scene(it: Scene) -> None:
        it.client.prewarm(it.request())
        socket = it.transport.sockets.of("openai", "t1")
        await until(lambda: socket.known)
        it.client.prewarm(it.request())
        assert records(await it.step()) == [("websocket", 1, None)]
        await it.step()
        assert (it.server.upgrades, it.server.prewarms) == (1, 1)
        assert it.wires == [("websocket", 1), ("websocket", 1)]
        it.client.prewarm(it.request())
        await it.step()
        assert (it.server.upgrades, it.server.prewarms) == (1, 1), "there is a socket"

    play(CALLS, scene)


def test_a_request_that_comes_while_the_socket_opens_takes_it() -> None:
    async def scene(it: Scene) -> None:
        it.client.prewarm(it.request())
        assert records(await it.step()) == [("websocket", 1, None)]
        await it.step()
        assert (it.server.upgrades, it.server.prewarms) == (1, 1)
        assert it.server.violations.all() == ()

    play(CALLS, scene)


def test_other_instructions_than_told_are_sent_over_the_same_socket() -> None:
    async def scene(it: Scene) -> None:
        it.client.prewarm(it.request())
        await until(lambda: it.transport.sockets.of("openai", "t1").known)
        await it.step(effort="high")
        assert it.server.upgrades == 1

    play(CALLS, scene)


def test_a_window_that_was_compacted_meanwhile_gets_a_socket_of_its_own() -> None:
    async def scene(it: Scene) -> None:
        it.client.prewarm(it.request())
        await it.step(window_number=1)
        assert records(await it.step(window_number=1)) == [("websocket", 1, None)]

    play(CALLS, scene)


def test_where_requests_are_counted_only_the_connection_is_made() -> None:
    async def scene(it: Scene) -> None:
        it.client.prewarm(it.request())
        await until(lambda: it.server.upgrades)
        await it.step()
        assert (it.server.upgrades, it.server.prewarms) == (1, 0)

    play(CALLS, scene, limits=ProviderLimits(concurrency=2))


def test_it_can_be_turned_off() -> None:
    async def scene(it: Scene) -> None:
        it.client.prewarm(it.request())
        assert not it.transport.sockets.of("openai", "t1").is_open
        await it.step()

    play(CALLS, scene, websocket_prewarm=False)


def test_426_was_heard_before_the_request() -> None:
    async def scene(it: Scene) -> None:
        it.client.prewarm(it.request())
        await until(lambda: it.transport.sockets.of("openai", "t1").off)
        events = await it.step()
        assert records(events) == [("sse", 1, None)]
        assert not any(isinstance(event, ModelNotice) for event in events)
        assert it.server.upgrades == 1

    play(CALLS, scene, upgrade_status=426)


@pytest.mark.parametrize("waits", [False, True])
def test_an_upgrade_that_is_refused_is_told_by_the_request(waits: bool) -> None:
    async def scene(it: Scene) -> None:
        it.client.prewarm(it.request())
        if waits:
            await until(lambda: it.server.upgrades)
            await until(lambda: not it.transport.sockets.of("openai", "t1").is_open)
        events = await it.step()
        assert sum(isinstance(event, ModelNotice) for event in events) == 1
        assert records(events)[-1] == ("sse", 2, None)

    play(CALLS, scene, upgrade_status=404)


def test_nobody_listens() -> None:
    async def scene(it: Scene) -> None:
        await it.server.close()
        it.client.prewarm(it.request())
        with pytest.raises(ModelError) as caught:
            await it.step()
        assert caught.value.code is ErrorCode.MODEL_UNREACHABLE

    play(CALLS, scene, request_retries=0)


def test_a_warm_socket_that_the_server_closed_is_replaced_unseen() -> None:
    async def scene(it: Scene) -> None:
        it.client.prewarm(it.request())
        socket = it.transport.sockets.of("openai", "t1")
        await until(lambda: socket.known)
        for task in tuple(it.server._connections):
            task.cancel()
            await asyncio.wait({task})
        assert records(await it.step()) == [("websocket", 1, None)]

    play(CALLS, scene)


def test_a_request_that_is_given_up_while_the_socket_opens_leaves_nothing() -> None:
    async def scene(it: Scene) -> None:
        it.client.prewarm(it.request())
        asking = asyncio.create_task(it.step())
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
        assert not it.transport.sockets.of("openai", "t1").is_open
        assert not it.transport.sockets.of("openai", "t1").in_use
        assert text_of(await it.step()) == "there"

    play("steps: [{items: [{message: there}]}]", scene)


# --- servers with a mind of their own


Handler = Callable[[ServerConnection], Awaitable[None]]


@asynccontextmanager
async def asked(handler: Handler, **config: Any) -> AsyncIterator[Scene]:
    """A client of a server that is only this handler."""
    async with asyncio.timeout(WAIT_S), serve(handler, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        provider = ProviderConfig(base_url=f"http://127.0.0.1:{port}/v1", supports_websockets=True, **config)
        async with ModelTransport() as transport, ResponsesClient(provider, transport) as client:
            yield Scene(None, transport, client, None, [user("fix it")])  # type: ignore[arg-type]


async def told(connection: ServerConnection) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(await connection.recv())
    return message


async def answer(connection: ServerConnection, response_id: str, text: str | None = None) -> None:
    await connection.send(json.dumps(builders.created(response_id, "m")))
    if text is not None:
        delta = {"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": text}
        await connection.send(json.dumps(delta))
    await connection.send(json.dumps(builders.completed(response_id, model="m")))


def test_no_request_waits_for_the_answer_to_what_was_told_before() -> None:
    """The server answers nothing before it has the request: who waited for that would wait for ever."""
    order: list[str] = []

    async def handler(connection: ServerConnection) -> None:
        first, second = await told(connection), await told(connection)
        order.extend("told" if message.get("generate") is False else "asked" for message in (first, second))
        assert "previous_response_id" not in second
        assert second["instructions"] == first["instructions"]
        await answer(connection, "resp_warm")
        await answer(connection, "resp_1", "there")
        third = await told(connection)
        assert third["previous_response_id"] == "resp_1"
        await answer(connection, "resp_2", "again")

    async def main() -> None:
        async with asked(handler) as it:
            it.client.prewarm(it.request())
            events = await it.step()
            assert text_of(events) == "there"
            assert records(events) == [("websocket", 1, None)]
            it.history.append(user("and now?"))
            assert text_of(await it.step()) == "again"

    asyncio.run(main())
    assert order == ["told", "asked"]


def test_closing_the_process_ends_a_warm_up() -> None:
    messages: list[dict[str, Any]] = []

    async def handler(connection: ServerConnection) -> None:
        messages.append(await told(connection))
        await connection.wait_closed()

    async def main() -> None:
        async with asked(handler) as it:
            it.client.prewarm(it.request())
            await until(lambda: messages)
            await it.transport.aclose()
            assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("model-socket")]

    asyncio.run(main())


REFUSAL = json.dumps(
    {"type": "error", "status": 400, "error": {"code": "invalid_request_error", "message": "what is generate?"}}
)


@pytest.mark.parametrize("when", ["before the request", "after the request"])
def test_a_server_that_knows_no_prewarming_is_not_told_anything_again(when: str) -> None:
    sockets: list[list[dict[str, Any]]] = []

    async def handler(connection: ServerConnection) -> None:
        messages: list[dict[str, Any]] = []
        sockets.append(messages)
        while True:
            messages.append(await told(connection))
            if messages[-1].get("generate") is not False:
                await answer(connection, "resp_1", "there")
                continue
            if when == "after the request":
                messages.append(await told(connection))
            await connection.send(REFUSAL)

    async def main() -> None:
        async with asked(handler) as it:
            it.client.prewarm(it.request())
            socket = it.transport.sockets.of("openai", "t1")
            if when == "before the request":
                await until(lambda: not socket.prewarms and not socket.is_open)
            events = await it.step()
            assert records(events) == [("websocket", 1, None)]
            assert text_of(events) == "there"
            assert not socket.prewarms
            await socket.reset()
            it.client.prewarm(it.request())
            assert text_of(await it.step()) == "there"

    asyncio.run(main())
    assert [["generate" in message for message in messages] for messages in sockets][1:] == [[False], [False]]


# --- the agent


def test_the_model_is_got_ready_before_the_box_and_the_repository_are_there() -> None:
    """The repository can't be looked at and the box does not come before the server was told: who waited would wait for ever."""

    class Slow(ScriptedSource):
        async def instructions(self, folder: str = "") -> Any:
            await until(lambda: server.prewarms)
            order.append("repository")
            return await super().instructions(folder)

        def prepare(self) -> None:
            order.append("box")
            super().prepare()

    order: list[str] = []
    server = ReplayServer(parse_script(CALLS.replace("exec_command", "no_such_tool")))

    async def main() -> None:
        await server.start()
        config = ProviderConfig(base_url=server.base_url, supports_websockets=True)
        try:
            async with asyncio.timeout(WAIT_S), ModelTransport() as transport, ResponsesClient(config, transport) as client:
                it = AgentHarness(spec=spec())
                it.clock = SystemClock()  # type: ignore[assignment]
                it.model = client  # type: ignore[assignment]
                it.source = Slow(it.clock, it.box)  # type: ignore[arg-type]
                it.session = it.new_session()
                it.submit(turn_input())
                await it.run()
                assert it.end().type == "turn_completed"
        finally:
            await server.close()
        assert (server.upgrades, server.prewarms) == (1, 1)
        assert [entry.wire for entry in server.log.all()] == ["websocket"] * 3
        assert order[0] == "repository"

    asyncio.run(main())
