"""Chat Completions behind the same port, against the replay model."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from patchyard.adapters.model import ModelPrice, ProviderConfig, ResponsesClient
from patchyard.agent.ports import (
    AttemptEnded,
    ItemDone,
    ModelError,
    ModelEvent,
    ModelRequest,
    ReasoningSummaryDelta,
    ResponseCompleted,
    TextDelta,
    ToolInputDelta,
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
    Reasoning,
)
from patchyard.replay import ReplayServer, parse_script
from tests.waiting import WAIT_S

PATCH = '*** Begin Patch\n*** Add File: a "b".txt\n+tab\there \\ und\u00e9 \U0001f600\n*** End Patch\n'
TOOLS = [
    {"type": "function", "name": "exec_command", "description": "Run.", "parameters": {"type": "object"}, "strict": False},
    {"type": "custom", "name": "apply_patch", "description": "Patch.", "format": {"syntax": "lark", "definition": "start: x"}},
    {"type": "web_search"},
]


def user(text: str = "fix it") -> Message:
    return Message(role="user", content=(InputText(text=text),))


def request(items: list[ModelItem] | None = None, **more: Any) -> ModelRequest:
    fields: dict[str, Any] = {"model": "m", "instructions": "Be brief.", "tools": TOOLS, "thread_id": "t1", "turn_id": "u1"}
    return ModelRequest(input=items or [user()], **fields | more)


def play(script: str, scene: Callable[[ReplayServer, ResponsesClient], Awaitable[None]], **config: Any) -> None:
    async def run() -> None:
        server = ReplayServer(parse_script(script))
        await server.start()
        price = ModelPrice(input_per_million=1, output_per_million=10)
        provider = ProviderConfig(base_url=server.base_url, wire_api="chat", prices={"m": price}, request_retries=0, **config)
        try:
            async with asyncio.timeout(WAIT_S), ResponsesClient(provider) as client:
                await scene(server, client)
        finally:
            await server.close()

    asyncio.run(run())


async def collect(client: ResponsesClient, asked: ModelRequest) -> list[ModelEvent]:
    return [event async for event in client.stream(asked)]


def test_a_thread_with_calls_a_patch_and_an_answer() -> None:
    script = f"""
steps:
  - items:
      - {{reasoning: Look first.}}
      - {{message: I look.}}
      - {{call: exec_command, arguments: {{cmd: "echo 'é'"}}, id: c1}}
      - {{custom: apply_patch, input: {json.dumps(PATCH, ensure_ascii=False)}, id: c2}}
  - expect: {{contains: [went well]}}
    items: [{{message: Done.}}]
    usage: {{input_tokens: 1000, cached_input_tokens: 400, output_tokens: 100}}
"""

    async def scene(server: ReplayServer, client: ResponsesClient) -> None:
        history: list[ModelItem] = [user(), Reasoning(encrypted_content="from another model")]
        first = await collect(client, request(history))
        items = [event.item for event in first if isinstance(event, ItemDone)]
        assert [type(item) for item in items] == [Message, FunctionCall, CustomToolCall]
        call, patch = items[1], items[2]
        assert isinstance(call, FunctionCall)
        assert isinstance(patch, CustomToolCall)
        assert (call.call_id, call.name, call.arguments) == ("c1", "exec_command", '{"cmd": "echo \'é\'"}')
        assert (patch.call_id, patch.name, patch.input) == ("c2", "apply_patch", PATCH)
        typed = {"c1": "", "c2": ""}
        for event in first:
            if isinstance(event, ToolInputDelta):
                typed[event.item_id] += event.delta
        assert typed == {"c1": call.arguments, "c2": PATCH}
        assert not any(isinstance(event, ReasoningSummaryDelta) for event in first)
        history += [
            *items,
            FunctionCallOutput(call_id="c1", output="é"),
            CustomToolCallOutput(call_id="c2", output="it went well"),
        ]
        second = await collect(client, request(history))
        assert "".join(event.delta for event in second if isinstance(event, TextDelta)) == "Done."
        ended, completed = second[-2:]
        assert isinstance(completed, ResponseCompleted)
        assert completed.usage.cached_input_tokens == 400
        assert isinstance(ended, AttemptEnded)
        assert ended.record.cost_usd == pytest.approx((1000 + 1000) / 1e6)
        assert server.violations.all() == ()
        assert {entry.wire for entry in server.log.all()} == {"chat"}
        body = server.log.last_request().body
        assert body is not None
        assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "tool", "tool"]
        assert [call["id"] for call in body["messages"][2]["tool_calls"]] == ["c1", "c2"]
        assert [tool["function"]["name"] for tool in body["tools"]] == ["exec_command", "apply_patch"]
        assert "start: x" in body["tools"][1]["function"]["description"]
        assert body["stream_options"] == {"include_usage": True}

    play(script, scene)


@pytest.mark.parametrize(
    ("step", "code", "retryable"),
    [
        ("{error: {status: 429, code: rate_limit_exceeded}}", ErrorCode.MODEL_RATE_LIMITED, True),
        ("{error: {status: 500}}", ErrorCode.MODEL_OVERLOADED, True),
        ("{error: {status: 401}}", ErrorCode.MODEL_UNAUTHORIZED, False),
        ("{error: {status: 400, code: context_length_exceeded}}", ErrorCode.CONTEXT_WINDOW_EXCEEDED, False),
        ("{error: {code: insufficient_quota, message: none left}}", ErrorCode.MODEL_QUOTA_EXCEEDED, False),
        ("{items: [{message: one two three}], cut_after: 5}", ErrorCode.MODEL_STREAM_FAILED, True),
        ("{items: [{message: one two three}], hang_after: 5}", ErrorCode.MODEL_STREAM_FAILED, True),
    ],
)
def test_errors_have_the_same_classes(step: str, code: ErrorCode, retryable: bool) -> None:
    async def scene(server: ReplayServer, client: ResponsesClient) -> None:
        with pytest.raises(ModelError) as caught:
            await collect(client, request())
        assert (caught.value.code, caught.value.retryable) == (code, retryable)

    play(f"steps: [{step}]", scene, idle_timeout_s=0.3 if "hang" in step else WAIT_S)


def test_a_whole_answer_that_was_cut_off_is_not_taken_for_one() -> None:
    events = '[{"type":"response.created","response":{"id":"r"}},{"type":"response.incomplete","response":{}}]'

    async def scene(server: ReplayServer, client: ResponsesClient) -> None:
        with pytest.raises(ModelError, match="max_output_tokens"):
            await collect(client, request())

    play(f"steps: [{{events: {events}}}]", scene)
