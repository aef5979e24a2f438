"""Events of the API as the agent gets them."""

import json
from typing import Any

import pytest

from patchyard.adapters.model.classify import Classifier
from patchyard.adapters.model.config import ProviderConfig
from patchyard.adapters.model.connections.sse import SseEvent
from patchyard.adapters.model.decode import Decoder, decode_usage, rate_limits
from patchyard.adapters.model.errors import ClassifiedError
from patchyard.agent.ports import (
    ItemAdded,
    ItemDone,
    ModelEvent,
    RateLimits,
    ReasoningSummaryDelta,
    ResponseCompleted,
    ResponseCreated,
    TextDelta,
    ToolInputDelta,
)
from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.model_items import FunctionCall, Message, OpaqueItem, OutputText, TokenUsage
from patchyard.testing import events as ev


def decode(*events: dict[str, Any]) -> list[ModelEvent]:
    decoder = Decoder(Classifier(ProviderConfig()))
    raw = [SseEvent(event["type"].encode(), json.dumps(event).encode()) for event in events]
    return [decoded.event for decoded in decoder.feed(raw)]


def test_a_whole_response() -> None:
    found = decode(
        *ev.sse(ev.ev_reasoning("Look."), ev.ev_message("Hi you"), ev.ev_function_call("c1", "exec_command", {"cmd": "ls"}))
    )
    assert isinstance(found[0], ResponseCreated)
    assert "".join(e.delta for e in found if isinstance(e, ReasoningSummaryDelta)) == "Look."
    assert "".join(e.delta for e in found if isinstance(e, TextDelta)) == "Hi you"
    assert "".join(e.delta for e in found if isinstance(e, ToolInputDelta)) == '{"cmd": "ls"}'
    assert {e.item_id for e in found if isinstance(e, TextDelta)} == {"msg_1"}
    assert [type(e.item).__name__ for e in found if isinstance(e, ItemAdded)] == ["Reasoning", "Message", "FunctionCall"]
    done = [e.item for e in found if isinstance(e, ItemDone)]
    assert isinstance(done[2], FunctionCall)
    assert done[2].arguments == '{"cmd": "ls"}'
    assert isinstance(found[-1], ResponseCompleted)


def test_end_turn_and_usage() -> None:
    usage = TokenUsage(input_tokens=9, cached_input_tokens=4, output_tokens=3, reasoning_output_tokens=1, total_tokens=12)
    (completed,) = decode(ev.ev_completed(usage=usage, end_turn=False))
    assert completed == ResponseCompleted("resp_1", usage, end_turn=False)
    assert decode_usage(None) == TokenUsage()
    assert decode_usage({"input_tokens": "x", "output_tokens": -3, "input_tokens_details": None}) == TokenUsage()


def test_what_is_unknown_or_no_json_is_passed_over() -> None:
    decoder = Decoder(Classifier(ProviderConfig()))
    for data in (b"{", b"[1]", b"[DONE]", b'{"type": "response.brand_new"}', b'"x"', b"\xff"):
        assert list(decoder.feed([SseEvent(b"", data)])) == []
    unknown = decode({"type": "response.output_item.done", "item": {"type": "web_search_call", "id": "ws", "action": {"q": 1}}})
    assert unknown == [ItemDone(OpaqueItem.model_validate({"type": "web_search_call", "id": "ws", "action": {"q": 1}}))]


def test_a_message_with_a_part_of_an_unknown_kind_keeps_the_rest() -> None:
    parts = [{"type": "output_text", "text": "hi"}, {"type": "hologram", "x": 1}]
    item = {"type": "message", "role": "assistant", "content": parts}
    assert decode({"type": "response.output_item.done", "item": item}) == [
        ItemDone(Message(role="assistant", content=(OutputText(text="hi"),)))
    ]


def test_deltas_without_an_item_id_belong_to_the_open_item() -> None:
    item = {"type": "message", "id": "m7", "role": "assistant", "content": []}
    found = decode({"type": "response.output_item.added", "item": item}, {"type": "response.output_text.delta", "delta": "x"})
    assert found[1] == TextDelta("m7", "x")


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (ev.ev_failed("context_length_exceeded", "too long"), ErrorCode.CONTEXT_WINDOW_EXCEEDED),
        (ev.ev_incomplete("max_output_tokens"), ErrorCode.MODEL_STREAM_FAILED),
        ({"type": "error", "code": "rate_limit_exceeded", "message": "try again in 3s"}, ErrorCode.MODEL_RATE_LIMITED),
        ({"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}, ErrorCode.MODEL_BAD_REQUEST),
        ({"type": "response.output_item.done", "item": {"type": "function_call", "name": "x"}}, ErrorCode.MODEL_STREAM_FAILED),
        ({"type": "response.output_item.done", "item": None}, ErrorCode.MODEL_STREAM_FAILED),
    ],
)
def test_failures_are_raised(event: dict[str, Any], code: ErrorCode) -> None:
    with pytest.raises(ClassifiedError) as caught:
        decode(event)
    assert caught.value.code is code
    if code is ErrorCode.MODEL_RATE_LIMITED:
        assert caught.value.retry_after_s == 3


def test_rate_limits() -> None:
    headers = {"x-ratelimit-remaining-tokens": "120", "x-ratelimit-reset-tokens": "6m0s", "server": "x"}
    assert rate_limits(headers) == RateLimits({"ratelimit_remaining_tokens": 120, "ratelimit_reset_tokens": "6m0s"})
    assert rate_limits({"server": "x"}) is None
    assert decode({"type": "codex.rate_limits", "primary": {"used_percent": 3}}) == [
        RateLimits({"primary": {"used_percent": 3}})
    ]


def test_counts_beyond_all_reason_are_cut() -> None:
    usage = decode_usage({"input_tokens": 10**30, "output_tokens": 3, "total_tokens": 10**40})
    assert usage.input_tokens == usage.total_tokens == 10**12  # sums of these still fit into what Redis can add


def test_what_is_nested_too_deeply_is_passed_over_as_no_json() -> None:
    decoder = Decoder(Classifier(ProviderConfig()))
    raw = [SseEvent(b"", b"[" * 200_000), SseEvent(b"", json.dumps(ev.ev_created()).encode())]
    assert [type(decoded.event) for decoded in decoder.feed(raw)] == [ResponseCreated]


def test_what_is_nested_too_deeply_to_be_recorded_is_a_broken_stream() -> None:
    deep = json.loads("[" * 600 + "]" * 600)
    assert decode({"type": "codex.rate_limits", "x": deep}) == []
    with pytest.raises(ClassifiedError, match="nested too deeply"):
        decode({"type": "response.output_item.done", "item": {"type": "new_kind", "id": "f", "x": deep}})


def test_lone_halves_of_surrogate_pairs_are_replaced_and_whole_pairs_stay() -> None:
    item = {"type": "function_call", "id": "f", "call_id": "c", "name": "run\udc00", "arguments": "\ud83d\ude00 \ud800"}
    (done,) = decode({"type": "response.output_item.done", "item": item})
    assert isinstance(done, ItemDone)
    assert isinstance(done.item, FunctionCall)
    assert (done.item.name, done.item.arguments) == ("run\ufffd", "\U0001f600 \ufffd")
