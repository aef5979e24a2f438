"""Chat Completions: what other servers send, and what they are sent."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchyard.adapters.model.chat import ChatDecoder, chat_body
from patchyard.adapters.model.chat.partial import TextArgument
from patchyard.adapters.model.classify import Classifier
from patchyard.adapters.model.config import ProviderConfig
from patchyard.adapters.model.connections.sse import SseEvent
from patchyard.adapters.model.errors import ClassifiedError
from patchyard.agent.ports import ItemDone, ModelEvent, ModelRequest, ResponseCompleted
from patchyard.protocol.model_items import (
    CustomToolCall,
    FunctionCall,
    FunctionCallOutput,
    InputImage,
    InputText,
    Message,
    ModelItem,
    OutputText,
)

CUSTOM = {"type": "custom", "name": "apply_patch", "description": "Patch."}


def decode(*chunks: dict[str, Any] | str) -> list[ModelEvent]:
    decoder = ChatDecoder(Classifier(ProviderConfig(wire_api="chat")), [CUSTOM])
    found: list[ModelEvent] = []
    for chunk in chunks:
        data = chunk.encode() if isinstance(chunk, str) else json.dumps(chunk).encode()
        found += [decoded.event for decoded in decoder.feed([SseEvent(b"", data)])]
    return found + [decoded.event for decoded in decoder.end()]


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def call(index: int, **fields: Any) -> dict[str, Any]:
    return delta(tool_calls=[{"index": index, **fields}])


def done(events: list[ModelEvent]) -> list[ModelItem]:
    return [event.item for event in events if isinstance(event, ItemDone)]


def test_calls_that_come_in_turns_and_without_done() -> None:
    events = decode(
        call(0, id="a", function={"name": "one", "arguments": ""}),
        call(1, id="b", function={"name": "two", "arguments": '{"x"'}),
        call(0, function={"arguments": "{}"}),
        call(1, function={"arguments": ":1}"}),
        delta("tool_calls"),
    )
    calls = [item for item in done(events) if isinstance(item, FunctionCall)]
    assert [(item.call_id, item.name, item.arguments) for item in calls] == [("a", "one", "{}"), ("b", "two", '{"x":1}')]
    assert isinstance(events[-1], ResponseCompleted)


def test_arguments_before_the_name_an_object_in_place_of_text_and_no_id() -> None:
    events = decode(call(0, function={"arguments": "{"}), call(0, function={"name": "one", "arguments": "}"}), delta("stop"))
    (first,) = done(events)
    assert isinstance(first, FunctionCall)
    assert first.arguments == "{}"
    assert first.call_id
    (second,) = done(decode(delta(tool_calls=[{"function": {"name": "one", "arguments": {"x": 1}}}]), delta("stop")))
    assert isinstance(second, FunctionCall)
    assert json.loads(second.arguments) == {"x": 1}


def test_a_bare_patch_in_place_of_json_is_the_patch() -> None:
    (item,) = done(decode(call(0, id="a", function={"name": "apply_patch", "arguments": "*** Begin"}), delta("stop")))
    assert isinstance(item, CustomToolCall)
    assert item.input == "*** Begin"


def test_a_stream_that_ends_without_a_reason_is_not_complete() -> None:
    assert not any(isinstance(event, ResponseCompleted) for event in decode(delta(content="half")))
    with pytest.raises(ClassifiedError):
        decode({"error": {"message": "out of memory", "code": "server_error"}})
    with pytest.raises(ClassifiedError, match="content filter"):
        decode(delta(content="a"), delta("content_filter"))


@given(st.text(), st.lists(st.integers(min_value=0, max_value=200), max_size=20), st.booleans())
def test_a_text_argument_in_any_pieces(text: str, cuts: list[int], ascii_only: bool) -> None:
    raw = json.dumps({"input": text}, ensure_ascii=ascii_only)
    borders = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    argument = TextArgument("input")
    pieces = [argument.feed(raw[a:b]) for a, b in itertools.pairwise(borders)]
    assert "".join(pieces) == text
    for piece in pieces:
        piece.encode()


def test_messages_of_all_kinds() -> None:
    def text(role: Any, words: str) -> Message:
        part = OutputText(text=words) if role == "assistant" else InputText(text=words)
        return Message(role=role, content=(part,))

    image = InputImage(image_url="data:image/png;base64,AA")
    items: list[ModelItem] = [
        text("developer", "rules"),
        text("user", "go"),
        text("assistant", "I look"),
        FunctionCall(call_id="a", name="view_image", arguments="{}"),
        FunctionCallOutput(call_id="a", output=(InputText(text="here"), image)),
        text("developer", "later rules"),
        Message(role="user", content=(InputText(text="see"), image)),
    ]
    request = ModelRequest(model="m", instructions="base", input=items, tools=[], thread_id="t", turn_id="u")
    messages = json.loads(chat_body(request))["messages"]
    roles = [message["role"] for message in messages]
    assert roles == ["system", "system", "user", "assistant", "tool", "user", "user", "user"]
    assert messages[3]["content"] == "I look"
    assert messages[3]["tool_calls"][0]["function"]["name"] == "view_image"
    assert messages[4]["content"] == "here\n[image: see the next message]"
    assert messages[5]["content"][1]["image_url"]["url"] == image.image_url
    assert messages[7]["content"][0] == {"type": "text", "text": "see"}
