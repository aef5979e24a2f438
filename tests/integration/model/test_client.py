"""The model client against the replay model: good days and bad ones."""

import asyncio
import random
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from patchyard.adapters.model import ModelPrice, ProviderConfig, ResponsesClient
from patchyard.agent.ports import (
    AttemptEnded,
    ItemDone,
    ModelError,
    ModelEvent,
    ModelRequest,
    RateLimits,
    ResponseCompleted,
    TextDelta,
)
from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.model_items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Message,
    ModelItem,
)
from patchyard.protocol.ops import TraceContext
from patchyard.replay import ReplayServer, parse_script
from tests.waiting import WAIT_S

KEY = "sk-secret-of-the-test"
TRACE = TraceContext(traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", tracestate="a=b")


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
class Bench:
    """What a scene works with."""

    server: ReplayServer
    client: ResponsesClient
    clock: FakeClock


@dataclass
class Result:
    """What came out of one stream."""

    events: list[ModelEvent] = field(default_factory=list)
    error: ModelError | None = None

    @property
    def records(self) -> list[AttemptEnded]:
        return [event for event in self.events if isinstance(event, AttemptEnded)]


def user(text: str = "fix it") -> Message:
    return Message(role="user", content=(InputText(text=text),))


def request(items: list[ModelItem] | None = None, **more: Any) -> ModelRequest:
    fields: dict[str, Any] = {"model": "gpt-5.5", "instructions": "Be brief.", "tools": [], "thread_id": "t1", "turn_id": "u1"}
    return ModelRequest(input=items or [user()], **fields | more)


async def collect(client: ResponsesClient, asked: ModelRequest) -> Result:
    result = Result()
    try:
        async for event in client.stream(asked):
            result.events.append(event)
    except ModelError as problem:
        result.error = problem
    return result


def scene(script: str, play: Callable[[Bench], Coroutine[Any, Any, None]], **config: Any) -> None:
    async def run() -> None:
        server = ReplayServer(parse_script(script))
        await server.start()
        clock = FakeClock()
        provider = ProviderConfig(base_url=server.base_url, api_key=KEY, **config)
        client = ResponsesClient(provider, trace=lambda: TRACE, clock=clock, chance=random.Random(7))
        try:
            await play(Bench(server, client, clock))
        finally:
            await client.aclose()
            await server.close()

    asyncio.run(run())


def test_a_turn_of_three_steps_keeps_every_rule_and_one_connection() -> None:
    script = """
steps:
  - items:
      - {reasoning: Look first.}
      - {call: exec_command, arguments: {cmd: ls}, id: c1}
      - {call: exec_command, arguments: {cmd: pwd}, id: c2}
  - items: [{custom: apply_patch, input: "*** Begin Patch", id: c3}]
  - items: [{message: Done.}]
    usage: {input_tokens: 1000, cached_input_tokens: 400, output_tokens: 100}
"""

    async def play(bench: Bench) -> None:
        history: list[ModelItem] = [user()]
        for _ in range(3):
            result = await collect(bench.client, request(list(history)))
            items = [event.item for event in result.events if isinstance(event, ItemDone)]
            history += items
            history += [FunctionCallOutput(call_id=i.call_id, output="ok") for i in items if isinstance(i, FunctionCall)]
            history += [CustomToolCallOutput(call_id=i.call_id, output="ok") for i in items if isinstance(i, CustomToolCall)]
        assert bench.server.violations.all() == ()
        assert len(bench.server._connections) == 1
        assert isinstance(result.events[-1], ResponseCompleted)
        assert isinstance(result.events[-2], AttemptEnded)
        record = result.events[-2].record
        assert record.cost_usd == pytest.approx((600 * 2 + 400 * 1 + 100 * 10) / 1e6)
        times = (record.queued_at, record.sent_at, record.first_byte_at, record.first_token_at, record.completed_at)
        assert None not in times
        assert (record.attempt, record.transport, record.input_items, record.error) == (1, "sse", 8, None)
        entry = bench.server.log.last_request()
        assert entry.function_call_output("c2")["output"] == "ok"
        assert entry.custom_tool_call_output("c3")["output"] == "ok"

    scene(script, play, prices={"gpt-5.5": ModelPrice(input_per_million=2, cached_input_per_million=1, output_per_million=10)})


def test_headers() -> None:
    async def play(bench: Bench) -> None:
        result = await collect(bench.client, request(window_number=3, kind="compaction"))
        headers = bench.server.log.single_request().headers
        assert headers["authorization"] == f"Bearer {KEY}"
        assert headers["session-id"] == headers["thread-id"] == "t1"
        assert headers["x-patchyard-window"] == "t1:3"
        assert headers["x-patchyard-request-kind"] == "compaction"
        assert headers["x-client-request-id"] == result.records[0].record.request_id
        assert (headers["traceparent"], headers["tracestate"]) == (TRACE.traceparent, TRACE.tracestate)
        assert headers["user-agent"].startswith("patchyard/")
        assert headers["x-team"] == "blue"

    scene("steps: [{items: [{message: x}]}]", play, headers={"X-Team": "blue"}, query={"api-version": "7"})


def test_server_errors_are_tried_again_with_growing_pauses() -> None:
    async def play(bench: Bench) -> None:
        result = await collect(bench.client, request(attempt=3))
        assert result.error is None
        assert [ended.record.attempt for ended in result.records] == [3, 4, 5, 6]
        assert [ended.record.error.code for ended in result.records if ended.record.error] == [ErrorCode.MODEL_OVERLOADED] * 3
        for pause, middle in zip(bench.clock.slept, (0.2, 0.4, 0.8), strict=True):
            assert 0.75 * middle <= pause <= 1.25 * middle

    scene("steps: [{error: {status: 500}, times: 3}, {items: [{message: x}]}]", play)


def test_a_pause_named_by_the_server_wins() -> None:
    async def play(bench: Bench) -> None:
        result = await collect(bench.client, request())
        assert result.error is None
        first, second = bench.clock.slept
        assert 7 <= first <= 7.2
        assert 1.5 <= second <= 1.7

    scene(
        "steps: [{error: {status: 429, retry_after: 7}}, {error: {status: 429, message: Please try again in 1.5s.}},"
        " {items: [{message: x}]}]",
        play,
    )


def test_a_long_pause_is_left_to_the_turn() -> None:
    async def play(bench: Bench) -> None:
        result = await collect(bench.client, request())
        assert result.error is not None
        assert (result.error.code, result.error.retry_after_s, result.error.retryable) == (
            ErrorCode.MODEL_RATE_LIMITED,
            3600,
            True,
        )
        assert bench.clock.slept == []

    scene("steps: [{error: {status: 429, retry_after: 3600}}]", play)


@pytest.mark.parametrize(
    ("error", "requests", "code"),
    [
        ("{status: 400, message: bad}", 1, ErrorCode.MODEL_BAD_REQUEST),
        ("{status: 401}", 1, ErrorCode.MODEL_UNAUTHORIZED),
        ("{status: 403}", 1, ErrorCode.MODEL_UNAUTHORIZED),
        ("{status: 404}", 1, ErrorCode.MODEL_BAD_REQUEST),
        ("{status: 429, code: insufficient_quota}", 1, ErrorCode.MODEL_QUOTA_EXCEEDED),
        ("{status: 429}", 3, ErrorCode.MODEL_RATE_LIMITED),
        ("{status: 500}", 3, ErrorCode.MODEL_OVERLOADED),
        ("{status: 503, code: server_is_overloaded}", 3, ErrorCode.MODEL_OVERLOADED),
        ("{code: rate_limit_exceeded}", 1, ErrorCode.MODEL_RATE_LIMITED),
        ("{code: context_length_exceeded}", 1, ErrorCode.CONTEXT_WINDOW_EXCEEDED),
        ("{code: server_error}", 1, ErrorCode.MODEL_STREAM_FAILED),
    ],
)
def test_how_often_each_failure_is_tried(error: str, requests: int, code: ErrorCode) -> None:
    async def play(bench: Bench) -> None:
        result = await collect(bench.client, request())
        assert result.error is not None
        assert (result.error.code, bench.server.log.count) == (code, requests)
        assert isinstance(result.events[-1], AttemptEnded)
        assert result.events[-1].record.error == result.error.info

    scene(f"{{steps: [{{error: {error}}}], repeat_last: true}}", play, request_retries=2)


def test_a_stream_that_is_cut_keeps_what_came_and_is_not_sent_again_here() -> None:
    async def play(bench: Bench) -> None:
        result = await collect(bench.client, request())
        assert result.error is not None
        assert (result.error.code, result.error.retryable) == (ErrorCode.MODEL_STREAM_FAILED, True)
        assert any(isinstance(event, TextDelta) for event in result.events)
        assert bench.server.log.count == 1

    scene("steps: [{items: [{message: a longer answer}], cut_after: 5}]", play)


def test_a_stream_that_ends_early_but_properly() -> None:
    async def play(bench: Bench) -> None:
        result = await collect(bench.client, request())
        assert result.error is not None
        assert "before the response was complete" in result.error.info.message

    scene("steps: [{events: [{type: response.created, response: {id: r}}]}]", play)


@pytest.mark.parametrize("silent", ["hang_after: 2", "delay_ms: 60000"])
def test_silence_is_given_up_after_the_idle_timeout(silent: str) -> None:
    async def play(bench: Bench) -> None:
        result = await collect(bench.client, request())
        assert result.error is not None
        assert result.error.code is ErrorCode.MODEL_STREAM_FAILED
        assert "0.2 s" in result.error.info.message

    scene(f"steps: [{{items: [{{message: x}}], {silent}}}]", play, idle_timeout_s=0.2)


def test_garbage_in_the_stream_is_passed_over() -> None:
    async def play(bench: Bench) -> None:
        result = await collect(bench.client, request())
        assert result.error is None
        assert [event.item.type for event in result.events if isinstance(event, ItemDone)] == ["message"]

    item = '{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}'
    scene(
        f"""steps: [{{events: ["{{not json", {{"type": "response.never_heard_of"}}, "[1, 2]",
        {{"type": "response.output_item.done", "item": {item}}},
        {{"type": "response.completed", "response": {{"id": "r"}}}}]}}]""",
        play,
    )


def test_a_web_page_in_place_of_a_stream() -> None:
    async def play(bench: Bench) -> None:
        result = await collect(bench.client, request())
        assert result.error is not None
        assert result.error.code is ErrorCode.MODEL_BAD_REQUEST
        assert "PATCHYARD_MODEL_BASE_URL" in result.error.info.message

    scene("steps: [{events: ['<html>'], headers: {content-type: text/html}}]", play)


def test_huge_deltas_and_items() -> None:
    async def play(bench: Bench) -> None:
        result = await collect(bench.client, request())
        assert result.error is None
        assert sum(len(event.delta) for event in result.events if isinstance(event, TextDelta)) == 3_000_000

    text = "x" * 3_000_000
    delta = f'{{"type": "response.output_text.delta", "item_id": "m", "delta": "{text}"}}'
    scene(f'{{"steps": [{{"events": [{delta}, {{"type": "response.completed", "response": {{"id": "r"}}}}]}}]}}', play)


def test_limits_of_the_provider_are_told() -> None:
    async def play(bench: Bench) -> None:
        result = await collect(bench.client, request())
        assert RateLimits({"ratelimit_remaining_requests": 41}) in result.events

    scene("steps: [{items: [{message: x}], headers: {x-ratelimit-remaining-requests: '41'}}]", play)


def test_nobody_listens() -> None:
    async def run() -> None:
        clock = FakeClock()
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        config = ProviderConfig(base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY, request_retries=2)
        async with ResponsesClient(config, clock=clock) as client:
            result = await collect(client, request())
        assert result.error is not None
        assert result.error.code is ErrorCode.MODEL_UNREACHABLE
        assert "PATCHYARD_MODEL_BASE_URL" in result.error.info.message
        assert [ended.record.sent_at for ended in result.records] == [None] * 3
        assert len(clock.slept) == 2

    asyncio.run(run())


def test_a_missing_ca_file_is_named() -> None:
    async def run() -> None:
        async with ResponsesClient(ProviderConfig(base_url="https://127.0.0.1:1/v1", ca_file="/nowhere.pem")) as client:
            result = await collect(client, request())
        assert result.error is not None
        assert "/nowhere.pem" in result.error.info.message

    asyncio.run(run())


def test_closing_the_stream_ends_the_request_upstream_at_once() -> None:
    async def play(bench: Bench) -> None:
        stream = bench.client.stream(request())
        while not isinstance(await anext(stream), TextDelta):
            pass
        await stream.aclose()
        await asyncio.wait_for(_no_connection(bench.server), WAIT_S)
        assert bench.server.log.single_request().outcome == "client_closed"

    scene("steps: [{items: [{message: some words that are sent}], hang_after: 6}]", play)


def test_cancelling_the_consumer_ends_the_request_upstream_at_once() -> None:
    async def play(bench: Bench) -> None:
        began = asyncio.Event()

        async def consume() -> None:
            async for event in bench.client.stream(request()):
                if isinstance(event, TextDelta):
                    began.set()

        task = asyncio.create_task(consume())
        await asyncio.wait_for(began.wait(), WAIT_S)
        task.cancel()
        await asyncio.wait({task})
        await asyncio.wait_for(_no_connection(bench.server), WAIT_S)
        assert bench.server.log.single_request().outcome == "client_closed"

    scene("steps: [{items: [{message: some words that are sent}], hang_after: 6}]", play)


def test_a_body_that_was_sent_is_not_kept_while_its_answer_comes() -> None:
    sent: list[bytes] = []

    async def play(bench: Bench) -> None:
        build = bench.client._bodies.build

        def remember(*args: Any, **more: Any) -> bytes:
            sent.append(build(*args, **more))
            return sent[-1]

        bench.client._bodies.build = remember  # type: ignore[method-assign]
        stream = bench.client.stream(request())
        while not isinstance(await anext(stream), TextDelta):
            pass
        body = sent.pop()
        assert b"fix it" in body
        assert sys.getrefcount(body) == 2  # this function's, and the one of the call
        await stream.aclose()

    scene("steps: [{items: [{message: some words that are sent}], hang_after: 6}]", play)


async def _no_connection(server: ReplayServer) -> None:
    while server._connections:
        await asyncio.wait(tuple(server._connections))


def test_two_hundred_streams_at_once() -> None:
    async def play(bench: Bench) -> None:
        results = await asyncio.gather(*(collect(bench.client, request(thread_id=f"t{n}")) for n in range(200)))
        assert [result.error for result in results] == [None] * 200
        assert bench.server.violations.count == 0

    scene("steps: [{items: [{message: many words for many threads}], token_delay_ms: 2}]", play)
