"""The fixtures that users get: what they answer, and what fails the test."""

import asyncio
from typing import Any

import pytest

from patchyard.adapters.model import ProviderConfig, ResponsesClient
from patchyard.agent.ports import ItemDone, ModelRequest
from patchyard.protocol.model_items import FunctionCall, FunctionCallOutput, InputText, Message, ModelItem
from patchyard.testing import events as ev
from patchyard.testing.replay_model import ReplayModel

pytest_plugins = ["patchyard.testing.replay_fixtures"]

USER = Message(role="user", content=(InputText(text="fix it"),))


def ask(model: ReplayModel, items: list[ModelItem]) -> list[ModelItem]:
    async def run() -> list[ModelItem]:
        async with ResponsesClient(ProviderConfig(base_url=model.base_url, request_retries=0)) as client:
            fields: dict[str, Any] = {"model": "m", "instructions": "", "tools": [], "thread_id": "t", "turn_id": "u"}
            return [e.item async for e in client.stream(ModelRequest(input=items, **fields)) if isinstance(e, ItemDone)]

    return asyncio.run(run())


def test_one_response(replay_model: ReplayModel) -> None:
    mounted = replay_model.mount_once(ev.sse(ev.ev_message("hi")))
    (item,) = ask(replay_model, [USER])
    assert isinstance(item, Message)
    assert mounted.single_request().message_texts("user") == ["fix it"]
    assert replay_model.single_request() is mounted.single_request()


def test_a_sequence_and_the_output_of_a_call(replay_model: ReplayModel) -> None:
    mounted = replay_model.mount_sequence(
        [ev.sse(ev.ev_function_call("c1", "exec_command", {"cmd": "ls"})), ev.sse(ev.ev_message("done"))]
    )
    (call,) = ask(replay_model, [USER])
    assert isinstance(call, FunctionCall)
    ask(replay_model, [USER, call, FunctionCallOutput(call_id="c1", output="a b")])
    assert mounted.function_call_output("c1")["output"] == "a b"
    with pytest.raises(LookupError, match="c2"):
        mounted.function_call_output("c2")
    with pytest.raises(AssertionError, match="2 came"):
        mounted.single_request()


def test_an_unused_response_fails_the_test() -> None:
    model = ReplayModel()
    model.mount_once(ev.sse(ev.ev_message("never asked for")))
    with pytest.raises(AssertionError, match="1 mounted responses were not asked for"):
        model.close()


def test_an_unexpected_request_fails_the_test() -> None:
    model = ReplayModel()
    with pytest.raises(Exception, match="no further step"):
        ask(model, [USER])
    with pytest.raises(AssertionError, match="unexpected_request"):
        model.close()


def test_a_broken_rule_fails_the_test() -> None:
    model = ReplayModel()
    model.mount_once(ev.sse(ev.ev_message("x")))
    ask(model, [USER, FunctionCallOutput(call_id="ghost", output="")])
    with pytest.raises(AssertionError, match="orphan_output"):
        model.close()
