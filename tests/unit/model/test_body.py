"""The request body, and that history is serialised once."""

import json
from typing import Any
from unittest.mock import patch

import pytest

from patchyard.adapters.model.body import BodyBuilder
from patchyard.agent.ports import ModelRequest
from patchyard.protocol.model_items import FunctionCall, InputText, Message, ModelItem


def message(text: str) -> Message:
    return Message(role="user", content=(InputText(text=text),))


def request(items: list[ModelItem], **more: Any) -> ModelRequest:
    fields: dict[str, Any] = {"model": "gpt-5.5", "instructions": "Be brief.", "tools": [], "thread_id": "t1", "turn_id": "u1"}
    return ModelRequest(input=items, **fields | more)


def test_the_whole_body() -> None:
    tool = {"type": "function", "name": "exec_command"}
    built = json.loads(
        BodyBuilder().build(request([message("hé")], tools=[tool], effort="high", output_schema={"type": "object"}))
    )
    assert built == {
        "model": "gpt-5.5",
        "instructions": "Be brief.",
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hé"}]}],
        "tools": [tool],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "high"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "t1",
        "text": {"format": {"type": "json_schema", "name": "final_answer", "strict": True, "schema": {"type": "object"}}},
    }


def test_without_tools_nothing_is_said_about_choosing_one() -> None:
    built = json.loads(BodyBuilder().build(request([message("a")])))
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(built)


def test_without_effort_there_is_no_reasoning_key() -> None:
    assert "reasoning" not in json.loads(BodyBuilder().build(request([message("a")])))


@pytest.mark.parametrize("cache_bytes", [0, 300, 1_000_000])
def test_every_kind_of_next_history_is_sent_right(cache_bytes: int) -> None:
    builder = BodyBuilder(cache_bytes=cache_bytes)
    items: list[ModelItem] = [message(f"item {n}") for n in range(6)]
    histories: list[list[ModelItem]] = [
        items[:2],
        items[:4],
        items,
        items[3:],
        [],
        items[:1],
        [*items[:3], message("other"), items[5]],
    ]
    for history in histories:
        for thread in ("t1", "t2"):
            built = json.loads(builder.build(request(history, thread_id=thread)))
            assert [item["content"][0]["text"] for item in built["input"]] == [item.content[0].text for item in history]  # type: ignore[union-attr]


def test_an_item_is_serialised_once() -> None:
    builder = BodyBuilder()
    history: list[ModelItem] = [FunctionCall(call_id=str(n), name="x", arguments="{}") for n in range(100)]
    builder.build(request(history))
    with patch.object(FunctionCall, "model_dump_json", autospec=True, side_effect=FunctionCall.model_dump_json) as dumped:
        builder.build(request([*history, FunctionCall(call_id="new", name="x", arguments="{}")]))
    assert dumped.call_count == 1


def test_fields_that_the_provider_added_go_back() -> None:
    item = FunctionCall.model_validate({"call_id": "c", "name": "n", "arguments": "{}", "vendor": {"a": [1]}})
    built = json.loads(BodyBuilder().build(request([item])))
    assert built["input"][0]["vendor"] == {"a": [1]}
