"""The doubles fail on the unexpected and on the unused: a test that passes has said everything that happens."""

import asyncio

import pytest

from patchyard.agent.ports import ModelRequest, SandboxExecRequest
from patchyard.protocol.events import ItemCompleted, ItemStarted, TurnCompleted, TurnStarted
from patchyard.protocol.items import PlanItem
from patchyard.protocol.model_items import FunctionCall, FunctionCallOutput, InputText, Message, TokenUsage
from patchyard.protocol.policies import ReadOnly
from patchyard.testing.builders import says, turn_input
from patchyard.testing.clock import FakeClock
from patchyard.testing.memory_channel import MemoryChannel
from patchyard.testing.scripted_model import ScriptedModel
from patchyard.testing.scripted_sandbox import Command, ScriptedSandbox

HELLO = Message(role="user", content=(InputText(text="hello"),))
BYE = Message(role="user", content=(InputText(text="bye"),))


def request(*items):
    return ModelRequest(model="m", instructions="", input=items, tools=(), thread_id="t", turn_id="u")


async def drain(model, *items):
    return [event async for event in model.stream(request(*items))]


def test_a_request_too_many():
    with pytest.raises(AssertionError, match="unexpected request 1"):
        asyncio.run(drain(ScriptedModel(FakeClock(), []), HELLO))


def test_a_response_that_nobody_asked_for():
    with pytest.raises(AssertionError, match="1 scripted responses"):
        ScriptedModel(FakeClock(), [says("x")]).assert_done()


def test_a_rewritten_history():
    async def main():
        model = ScriptedModel(FakeClock(), [says("x"), says("y")])
        await drain(model, HELLO)
        await drain(model, BYE)

    with pytest.raises(AssertionError, match="not append-only: item 0"):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (FunctionCall(call_id="c", name="x", arguments=""), "calls without output"),
        (FunctionCallOutput(call_id="c", output=""), "output without a call"),
    ],
)
def test_a_broken_pair(item, words):
    with pytest.raises(AssertionError, match=words):
        asyncio.run(drain(ScriptedModel(FakeClock(), [says("x")]), item))


def test_an_unexpected_command():
    async def main():
        box = ScriptedSandbox(FakeClock(), [Command("ls")])
        await box.spawn(SandboxExecRequest(("bash", "-c", "rm x"), "/", {}, ReadOnly()))

    with pytest.raises(AssertionError, match="unexpected command: 'rm x'"):
        asyncio.run(main())


def test_a_command_that_never_ran():
    with pytest.raises(AssertionError, match="never ran"):
        ScriptedSandbox(FakeClock(), [Command("ls")]).assert_done()


@pytest.mark.parametrize(
    "payloads",
    [
        [ItemCompleted(item=PlanItem(id="p", steps=()), completed_at=0)],
        [ItemStarted(item=PlanItem(id="p", steps=()), started_at=0)] * 2,
        [ItemStarted(item=PlanItem(id="p", steps=()), started_at=0), "end"],
        ["end", "end"],
    ],
    ids=["completed without start", "started twice", "ended with open items", "ended twice"],
)
def test_a_broken_record(payloads):
    end = TurnCompleted(usage=TokenUsage(), model_requests=0, tool_calls=0, duration_ms=0)

    async def main():
        channel = MemoryChannel(FakeClock())
        await channel.commit([TurnStarted(model="m", submitted_at=0, started_at=0)], turn_id="t")
        await channel.commit([end if p == "end" else p for p in payloads], turn_id="t")

    with pytest.raises(AssertionError):
        asyncio.run(main())


def test_a_submission_is_consumed_once():
    async def main():
        channel = MemoryChannel(FakeClock())
        sub = channel.submit(turn_input())
        await channel.commit([], consumed=[sub.id])
        await channel.commit([], consumed=[sub.id])

    with pytest.raises(AssertionError, match="consumed twice"):
        asyncio.run(main())


def test_what_was_not_consumed_comes_again_to_the_next_owner():
    async def main():
        channel = MemoryChannel(FakeClock())
        sub = channel.submit(turn_input())
        assert await channel.receive() == sub
        assert await channel.successor().receive() == sub

    asyncio.run(main())


def test_a_clock_that_moves_by_itself_wakes_in_order():
    async def main():
        clock, order = FakeClock(), []

        async def sleeper(seconds):
            await clock.sleep(seconds)
            order.append(seconds)

        await asyncio.gather(sleeper(3), sleeper(1), sleeper(2))
        assert (order, clock.monotonic()) == ([1, 2, 3], 3)

    asyncio.run(main())


def test_a_clock_that_is_moved_by_hand():
    async def main():
        clock = FakeClock(auto=False)
        task = asyncio.create_task(clock.sleep(5))
        await clock.advance(4.9)
        assert not task.done()
        await clock.advance(0.1)
        assert task.done()

    asyncio.run(main())
