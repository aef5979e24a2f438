"""Compaction through the model client, against the replay server: it checks that a window is only appended to."""

import asyncio

import pytest

from patchyard.adapters.model import ProviderConfig, ResponsesClient
from patchyard.replay.script.model import ErrorSpec, Step
from patchyard.testing.clock import FakeClock
from patchyard.testing.events import ev_completed, ev_function_call, ev_message, sse
from patchyard.testing.harness import AgentHarness
from patchyard.testing.replay_model import ReplayModel
from patchyard.testing.scripted_sandbox import Command
from tests.conformance.agent.test_compaction_over_queue import FULL

FULL_STEP = sse(ev_function_call("c1", "exec_command", {"cmd": "ls"}), ev_completed(usage=FULL))
SECOND_STEP = sse(ev_function_call("c2", "exec_command", {"cmd": "ls"}), ev_completed(usage=FULL))
OPAQUE = {"type": "response.output_item.done", "output_index": 0, "item": {"type": "compaction", "encrypted_content": "xyz"}}
TOO_LONG = Step(error=ErrorSpec(status=400, code="context_length_exceeded", message="too long"))


def play(responses, commands=2, **config):
    model = ReplayModel()
    mounted = model.mount_sequence(responses)

    async def main():
        commanded = [Command("ls", b"a.py")] * commands
        h = AgentHarness(commands=commanded, clock=FakeClock(auto=False), model_context_window=10_000, **config)
        async with ResponsesClient(ProviderConfig(base_url=model.base_url, request_retries=0)) as client:
            h.model = client
            h.session = h.new_session()
            h.submit()
            await h.run()
            h.box.assert_done()
            h.channel.assert_clean()
        return h

    try:
        h = asyncio.run(main())
    except BaseException:
        model.close(check=False)
        raise
    model.close()
    return h, mounted.requests


def kinds(requests):
    return [request.headers["x-patchyard-request-kind"] for request in requests]


def windows(requests):
    return [request.headers["x-patchyard-window"].rsplit(":", 1)[1] for request in requests]


def test_a_summary_by_the_model():
    h, requests = play([FULL_STEP, sse(ev_message("first")), SECOND_STEP, sse(ev_message("second")), sse(ev_message("ok"))])
    assert kinds(requests) == ["turn", "compaction", "turn", "compaction", "turn"]
    assert windows(requests) == ["0", "0", "1", "1", "2"]
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(requests[1].body)
    assert "second" in requests[-1].input[-1]["content"][0]["text"]
    assert h.end().type == "turn_completed"


def test_the_providers_own():
    h, requests = play([FULL_STEP, sse(OPAQUE), sse(ev_message("ok"))], commands=1, compaction="remote")
    assert requests[1].input[-1] == {"type": "compaction_trigger"}
    assert requests[1].body["tools"] == requests[0].body["tools"]
    assert requests[2].input[-1] == {"type": "compaction", "encrypted_content": "xyz"}
    assert h.end().type == "turn_completed"


def test_a_new_window_without_a_request():
    _, requests = play([FULL_STEP, SECOND_STEP, sse(ev_message("ok"))], compaction="token_budget")
    assert windows(requests) == ["0", "1", "2"]


@pytest.mark.parametrize("method", ["local", "remote"])
def test_a_window_that_does_not_fit(method):
    answer = sse(ev_message("sum")) if method == "local" else sse(OPAQUE)
    step = sse(ev_function_call("c1", "exec_command", {"cmd": "ls"}))
    h, requests = play([step, TOO_LONG, TOO_LONG, answer, sse(ev_message("ok"))], commands=1, compaction=method)
    assert kinds(requests) == ["turn", "turn", "compaction", "compaction", "turn"]
    assert len(requests[3].input) < len(requests[2].input)
    assert h.end().type == "turn_completed"
