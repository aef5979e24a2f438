"""The model client over WebSockets, against the replay model."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from patchyard.adapters.model import ModelTransport, ProviderConfig, ResponsesClient
from patchyard.agent.ports import (
    AttemptEnded,
    ItemDone,
    ModelError,
    ModelEvent,
    ModelNotice,
    ModelRequest,
    ResponseCompleted,
    TextDelta,
)
from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.model_items import FunctionCall, FunctionCallOutput, InputText, Message, ModelItem
from patchyard.replay import ReplayServer, parse_script
from tests.waiting import WAIT_S


@dataclass
class FakeClock:
    """Sleeps at once and remembers."""

    slept: list[float] = field(default_factory=list)

    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@dataclass
class Scene:
    """A server, a client and a thread's history."""

    server: ReplayServer
    transport: ModelTransport
    client: ResponsesClient
    clock: FakeClock
    history: list[ModelItem]

    async def step(self, **more: Any) -> list[ModelEvent]:
        """One request; its items and the outputs of its calls go into the history."""
        events: list[ModelEvent] = []
        try:
            async for event in self.client.stream(self.request(**more)):
                events.append(event)
        except ModelError as problem:
            problem.add_note("\n".join(map(str, events)))
            self.seen = events
            raise
        items = [event.item for event in events if isinstance(event, ItemDone)]
        self.history += items
        self.history += [FunctionCallOutput(call_id=i.call_id, output="ok") for i in items if isinstance(i, FunctionCall)]
        return events

    def request(self, **more: Any) -> ModelRequest:
        fields: dict[str, Any] = {"model": "gpt-5.5", "instructions": "Be brief.", "tools": [], "thread_id": "t1"}
        return ModelRequest(input=list(self.history), turn_id="u1", **fields | more)

    @property
    def wires(self) -> list[tuple[str, int | None]]:
        return [(entry.wire, entry.new_items) for entry in self.server.log.all()]


def user(text: str) -> Message:
    return Message(role="user", content=(InputText(text=text),))


def play(script: str, scene: Callable[[Scene], Awaitable[None]], *, upgrade_status: int | None = None, **config: Any) -> None:
    async def run() -> None:
        server = ReplayServer(parse_script(script), upgrade_status=upgrade_status)
        await server.start()
        provider = ProviderConfig(base_url=server.base_url, api_key="sk-test-secret", supports_websockets=True, **config)
        clock = FakeClock()
        try:
            async with asyncio.timeout(WAIT_S), ModelTransport() as transport:
                client = ResponsesClient(provider, transport, clock=clock, chance=random.Random(7))
                try:
                    await scene(Scene(server, transport, client, clock, [user("fix it")]))
                finally:
                    await client.aclose()
        finally:
            await server.close()

    asyncio.run(run())


def records(events: list[ModelEvent]) -> list[tuple[str, int, str | None]]:
    found = [event.record for event in events if isinstance(event, AttemptEnded)]
    return [(record.transport, record.attempt, record.error.code if record.error else None) for record in found]


def text_of(events: list[ModelEvent]) -> str:
    return "".join(event.delta for event in events if isinstance(event, TextDelta))


CALLS = """
steps:
  - items: [{reasoning: Look.}, {call: exec_command, arguments: {cmd: ls}, id: c1}]
  - items: [{call: exec_command, arguments: {cmd: pwd}, id: c2}]
  - items: [{message: Done.}]
  - items: [{message: Again.}]
"""


def test_one_socket_carries_a_thread_and_only_what_is_new() -> None:
    async def scene(it: Scene) -> None:
        for _ in range(3):
            events = await it.step()
        assert records(events) == [("websocket", 1, None)]
        it.history.append(user("and now?"))
        # The next turn has a client of its own: the socket belongs to the process.
        it.client = ResponsesClient(it.client._config, it.transport)
        assert text_of(await it.step()) == "Again."
        assert it.wires == [("websocket", 1), ("websocket", 1), ("websocket", 1), ("websocket", 1)]
        assert [entry.items for entry in it.server.log.all()] == [1, 4, 6, 8]
        assert (it.server.upgrades, it.server.prewarms) == (1, 0)
        assert it.server.violations.all() == ()
        record = next(event.record for event in events if isinstance(event, AttemptEnded))
        times = (record.queued_at, record.sent_at, record.first_byte_at, record.first_token_at, record.completed_at)
        assert None not in times
        headers = it.server.log.all()[0].headers
        assert headers["openai-beta"] == "responses_websockets=2026-02-06"
        assert headers["x-patchyard-window"] == "t1:0"

    play(CALLS, scene)


def test_a_compacted_thread_gets_a_new_socket_and_tells_everything() -> None:
    async def scene(it: Scene) -> None:
        await it.step()
        await it.step()
        it.history[:] = [user("summary of before"), user("go on")]
        await it.step(window_number=1)
        assert it.wires == [("websocket", 1), ("websocket", 1), ("websocket", 2)]
        assert it.server.upgrades == 2
        assert it.server.violations.all() == ()

    play(CALLS, scene)


def test_other_instructions_or_a_changed_history_are_sent_as_a_whole() -> None:
    async def scene(it: Scene) -> None:
        await it.step()
        await it.step(effort="high")
        copy = [item.model_copy(deep=True) for item in it.history]
        it.history[:] = copy
        await it.step(effort="high")
        assert it.wires == [("websocket", 1), ("websocket", 4), ("websocket", 1)]
        assert it.server.upgrades == 1
        assert it.server.violations.all() == ()

    play(CALLS, scene)


def test_426_means_sse_at_once_without_a_word() -> None:
    async def scene(it: Scene) -> None:
        first, second = await it.step(), await it.step()
        assert records(first) + records(second) == [("sse", 1, None)] * 2
        assert not any(isinstance(event, ModelNotice) for event in [*first, *second])
        assert it.server.upgrades == 1
        assert it.clock.slept == []

    play(CALLS, scene, upgrade_status=426)


def test_after_a_426_no_thread_of_the_process_asks_for_ten_minutes() -> None:
    async def scene(it: Scene) -> None:
        now = 1_000.0
        it.transport.sockets._now = lambda: now
        await it.step()
        for thread in ("t2", "t3"):
            it.client.prewarm(it.request(thread_id=thread))
            assert records(await it.step(thread_id=thread)) == [("sse", 1, None)]
        assert it.server.upgrades == 1
        now += 600.0
        await it.step(thread_id="t4")
        assert it.server.upgrades == 2

    play("steps: [{items: [{message: ok}]}]", scene, upgrade_status=426)


def test_an_address_without_sockets_is_told_once() -> None:
    async def scene(it: Scene) -> None:
        first, second = await it.step(), await it.step()
        assert records(first) == [("websocket", 1, ErrorCode.MODEL_BAD_REQUEST), ("sse", 2, None)]
        assert sum(isinstance(event, ModelNotice) for event in first) == 1
        assert records(second) == [("sse", 1, None)]
        assert it.server.upgrades == 1

    play(CALLS, scene, upgrade_status=404)


def test_sockets_that_can_not_be_opened_are_given_up_after_some_tries() -> None:
    async def scene(it: Scene) -> None:
        first = await it.step()
        code = ErrorCode.MODEL_OVERLOADED
        assert records(first) == [*(("websocket", number, code) for number in (1, 2, 3)), ("sse", 4, None)]
        assert len(it.clock.slept) == 2

    play(CALLS, scene, upgrade_status=503)


def test_streams_that_break_are_given_up_for_the_rest_of_the_session() -> None:
    async def scene(it: Scene) -> None:
        for attempt in (1, 2, 3):
            with pytest.raises(ModelError) as caught:
                await it.step(attempt=attempt)
            assert caught.value.retryable
            assert caught.value.code is ErrorCode.MODEL_STREAM_FAILED
            assert records(it.seen) == [("websocket", attempt, ErrorCode.MODEL_STREAM_FAILED)]
        assert isinstance(it.seen[-1], ModelNotice)
        assert records(await it.step(attempt=4)) == [("sse", 4, None)]
        assert records(await it.step()) == [("sse", 1, None)]
        assert it.server.violations.all() == ()

    play("steps: [{items: [{message: one two three}], cut_after: 4, times: 3}, {items: [{message: x}], times: 2}]", scene)


def test_a_429_frame_is_a_429() -> None:
    async def scene(it: Scene) -> None:
        events = await it.step()
        assert records(events) == [("websocket", 1, ErrorCode.MODEL_RATE_LIMITED), ("websocket", 2, None)]
        assert 3 <= it.clock.slept[0] <= 3.2
        assert not any(isinstance(event, ModelNotice) for event in events)

    play("steps: [{error: {status: 429, code: rate_limit_exceeded, retry_after: 3}}, {items: [{message: x}]}]", scene)


def test_a_401_at_the_door_is_no_reason_to_try_another_way() -> None:
    async def scene(it: Scene) -> None:
        with pytest.raises(ModelError) as caught:
            await it.step()
        assert caught.value.code is ErrorCode.MODEL_UNAUTHORIZED
        assert it.server.upgrades == 1
        assert it.server.log.count == 0

    play(CALLS, scene, upgrade_status=401)


def test_a_server_that_forgot_gets_everything_again_unseen() -> None:
    async def scene(it: Scene) -> None:
        await it.step()
        thread = it.transport.sockets.of("openai", "t1")
        assert thread.known is not None
        object.__setattr__(thread.known, "response_id", "resp_of_another_life")
        events = await it.step()
        assert records(events) == [("websocket", 1, None)]
        assert it.wires == [("websocket", 1), ("websocket", 4)]
        assert it.server.upgrades == 2
        assert it.server.violations.all() == ()

    play(CALLS, scene)


def test_a_socket_that_the_server_closed_between_turns_is_replaced_unseen() -> None:
    async def scene(it: Scene) -> None:
        await it.step()
        for task in tuple(it.server._connections):
            task.cancel()
            await asyncio.wait({task})
        assert records(await it.step()) == [("websocket", 1, None)]
        assert it.wires == [("websocket", 1), ("websocket", 4)]

    play(CALLS, scene)


def test_leaving_the_stream_closes_the_socket() -> None:
    async def scene(it: Scene) -> None:
        stream = it.client.stream(it.request())
        async for event in stream:
            if isinstance(event, TextDelta):
                break
        await stream.aclose()
        while it.server._connections:
            await asyncio.sleep(0)
        assert it.server.log.last_request().outcome == "client_closed"
        assert not it.transport.sockets.of("openai", "t1").is_open
        assert text_of(await it.step()) == "there"
        assert it.server.upgrades == 2

    play("steps: [{items: [{message: one two}], hang_after: 4}, {items: [{message: there}]}]", scene)


def test_cancelling_before_the_answer_closes_the_socket_too() -> None:
    async def scene(it: Scene) -> None:
        asking = asyncio.create_task(it.step())
        while not it.server.log.count:
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
        assert not it.transport.sockets.of("openai", "t1").in_use
        assert text_of(await it.step()) == "there"

    play("steps: [{hang_after: 0}, {items: [{message: there}]}]", scene)


def test_silence_is_given_up() -> None:
    async def scene(it: Scene) -> None:
        with pytest.raises(ModelError, match="idle timeout"):
            await it.step()
        assert not it.transport.sockets.of("openai", "t1").is_open

    play("steps: [{items: [{message: one two}], hang_after: 4}]", scene, idle_timeout_s=0.2)


def test_requests_and_responses_have_a_size_limit() -> None:
    async def scene(it: Scene) -> None:
        with pytest.raises(ModelError, match="max_response_bytes"):
            await it.step()
        it.history[:] = [user("x" * 5000)]
        with pytest.raises(ModelError, match="max_request_bytes") as caught:
            await it.step()
        assert not caught.value.retryable

    script = "steps: [{items: [{message: " + "long " * 2000 + "}], times: 2}]"
    play(script, scene, max_request_bytes=4000, max_response_bytes=20_000)


def test_two_requests_of_one_thread_at_once() -> None:
    async def scene(it: Scene) -> None:
        first = it.client.stream(it.request())
        await anext(first)
        second = await it.step(kind="compaction")
        assert records(second) == [("sse", 1, None)]
        rest = [event async for event in first]
        assert records(rest) == [("websocket", 1, None)]
        assert isinstance(rest[-1], ResponseCompleted)

    play("steps: [{items: [{message: one two three four}], token_delay_ms: 30}, {items: [{message: x}]}]", scene)
