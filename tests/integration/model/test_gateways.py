"""Providers that want a key header and query parameters, and limits that are shared."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from patchyard.adapters.model import ModelRouter, ModelTransport, ProviderBook, ProviderConfig, ProviderLimits, ResponsesClient
from patchyard.agent.ports import AttemptEnded, ModelError, ModelEvent, ModelRequest, TextDelta
from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.model_items import InputText, Message
from patchyard.replay import Demands, ReplayServer, parse_script
from tests.waiting import WAIT_S

SCRIPT = "steps: [{items: [{message: hello}]}]\nrepeat_last: true"
AZURE = Demands(headers={"api-key": "azure-secret", "x-team": "blue"}, query={"api-version": "preview"})


def request(model: str = "gpt-5.5", thread: str = "t1") -> ModelRequest:
    said = Message(role="user", content=(InputText(text="hi"),))
    return ModelRequest(model=model, instructions="", input=[said], tools=[], thread_id=thread, turn_id="u")


def serve(
    script: str, scene: Callable[[ReplayServer, ModelTransport], Coroutine[Any, Any, None]], demands: Demands | None = None
) -> None:
    async def run() -> None:
        server = ReplayServer(parse_script(script), demands=demands)
        await server.start()
        try:
            async with asyncio.timeout(WAIT_S), ModelTransport() as transport:
                await scene(server, transport)
        finally:
            await server.close()

    asyncio.run(run())


@pytest.mark.parametrize("way", ["sse", "websocket", "chat"])
def test_azure_style(way: str) -> None:
    async def scene(server: ReplayServer, transport: ModelTransport) -> None:
        config = ProviderConfig(
            name="azure",
            from_table=True,
            base_url=server.base_url,
            api_key="azure-secret",
            key_header="api-key",
            query={"api-version": "preview"},
            headers={"X-Team": "blue"},
            wire_api="chat" if way == "chat" else "responses",
            supports_websockets=way == "websocket",
        )
        events = [event async for event in ResponsesClient(config, transport).stream(request())]
        assert "".join(event.delta for event in events if isinstance(event, TextDelta)) == "hello"
        assert [entry.wire for entry in server.log.all()] == [way]
        assert "authorization" not in server.log.last_request().headers
        wrong = config.model_copy(update={"api_key": None, "name": "other"})
        with pytest.raises(ModelError, match=r"`api_key` of \[providers.other\]") as caught:
            _ = [event async for event in ResponsesClient(wrong, transport).stream(request())]
        assert caught.value.code is ErrorCode.MODEL_UNAUTHORIZED

    serve(SCRIPT, scene, AZURE)


def test_a_thread_may_go_from_one_provider_to_another() -> None:
    async def scene(server: ReplayServer, transport: ModelTransport) -> None:
        base = server.base_url
        book = ProviderBook(
            [
                ProviderConfig(name="one", base_url=base, models=("gpt-*",)),
                ProviderConfig(name="two", base_url=base, models=("big",), wire_api="chat"),
            ]
        )
        router = ModelRouter(book, transport, tenant_id="acme", trace=lambda: None)
        seen: list[tuple[str, str]] = []
        for model in ("gpt-5.5", "big", "one/gpt-9"):
            events: list[ModelEvent] = [event async for event in router.stream(request(model, thread=model))]
            (record,) = [event.record for event in events if isinstance(event, AttemptEnded)]
            seen.append((record.provider, record.model))
        assert seen == [("one", "gpt-5.5"), ("two", "big"), ("one", "gpt-9")]
        with pytest.raises(ModelError, match=r"no provider serves the model other.*one: gpt-\*; two: big") as caught:
            await anext(router.stream(request("other")))
        assert not caught.value.retryable

    serve(SCRIPT, scene)


@dataclass
class FakeGate:
    """Lets everybody in and remembers."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    told: asyncio.Event = field(default_factory=asyncio.Event)
    paused: asyncio.Event = field(default_factory=asyncio.Event)

    async def enter(self, provider: str, *, tokens: int, **limits: int | None) -> str:
        assert tokens > 0
        self.calls.append(("enter", provider, limits["concurrency"], limits["tokens_per_minute"]))
        return f"permit-{len(self.calls)}"

    async def leave(self, provider: str, permit: str, *, tokens: int | None) -> None:
        self.calls.append(("leave", permit, tokens))
        self.told.set()

    async def pause(self, provider: str, seconds: float) -> None:
        self.calls.append(("pause", seconds))
        if seconds == 0.02:
            self.paused.set()


def test_each_attempt_passes_the_gate_and_tells_what_it_learnt() -> None:
    async def scene(server: ReplayServer, transport: ModelTransport) -> None:
        gate = FakeGate()
        limits = ProviderLimits(concurrency=3, tokens_per_minute=1000)
        config = ProviderConfig(name="p", base_url=server.base_url, limits=limits)
        client = ResponsesClient(config, transport, gate=gate)
        _ = [event async for event in client.stream(request())]
        await gate.paused.wait()
        assert gate.calls == [
            ("enter", "p", 3, 1000),
            ("leave", "permit-1", None),
            ("pause", 0.01),
            ("enter", "p", 3, 1000),
            ("leave", "permit-4", 30),
            ("pause", 0.02),
        ]
        left = client.stream(request(thread="t2"))
        await anext(left)
        gate.told.clear()
        await left.aclose()
        await gate.told.wait()
        assert gate.calls[-1] == ("leave", "permit-7", None)

    script = """
steps:
  - error: {status: 429, code: rate_limit_exceeded, retry_after: 0.01}
  - items: [{message: hello}]
    usage: {input_tokens: 20, output_tokens: 10}
    headers: {x-ratelimit-remaining-requests: "0", x-ratelimit-reset-requests: 20ms}
repeat_last: true
"""
    serve(script, scene)
