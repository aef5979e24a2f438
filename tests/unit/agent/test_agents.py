import asyncio
import json

from patchyard.protocol.ops import Interrupt
from patchyard.protocol.policies import Budgets
from patchyard.testing.agents import Child, ScriptedAgents
from patchyard.testing.builders import call, response, says, shell, spec
from patchyard.testing.clock import FakeClock
from patchyard.testing.harness import AgentHarness
from patchyard.testing.scripted_sandbox import Command

TOOLS = ["spawn_agent", "send_input", "wait_agent", "close_agent"]


def harness(steps, children, **more):
    clock = FakeClock()
    return AgentHarness(steps, clock=clock, agents=ScriptedAgents(clock, children), **more)


def spawn(*orders):
    return response(*(call("spawn_agent", order, message=order) for order in orders))


def wait(call_id="w", **arguments):
    return response(call("wait_agent", call_id, **arguments))


def run(h):
    async def main():
        h.submit()
        await h.run()
        h.assert_done()
        h.agents.assert_done()

    asyncio.run(main())


def id_of(h, order):
    return json.loads(h.model.outputs()[order])["agent_id"]


def answers(h, call_id="w"):
    return json.loads(h.model.outputs()[call_id])


def names(request):
    return [tool["name"] for tool in request.tools]


def test_agents_are_offered_only_where_there_are_threads_for_them_and_not_below_the_depth_limit():
    for h, offered in (
        (AgentHarness([says("ok")]), []),
        (harness([says("ok")], []), TOOLS),
        (harness([says("ok")], [], agent_depth=1), []),
        (harness([says("ok")], [], agent_depth=1, agents_depth_limit=2), TOOLS),
    ):

        async def main(h=h):
            h.submit()
            await h.run()

        asyncio.run(main())
        assert [n for n in names(h.model.requests[0]) if n in TOOLS] == offered


def test_an_agent_answers_and_ends_with_the_turn():
    h = harness([spawn("find the bug"), wait(), says("thanks")], [Child("find the bug", "a.py:3", seconds=20)])
    run(h)
    (order,) = h.agents.orders
    assert order.depth == 1
    assert order.instruction.startswith("You were started by another agent")
    thread_id = id_of(h, "find the bug")
    assert answers(h) == {"agents": {thread_id: {"status": "completed", "message": "a.py:3"}}, "timed_out": False}
    shown = [(e.item.action, e.item.agents, e.item.status) for e in h.of_type("item_completed") if e.item.type == "sub_agent"]
    assert shown == [("spawn", (thread_id,), "completed"), ("wait", (thread_id,), "completed")]


def test_agents_work_side_by_side_and_the_first_answer_ends_the_wait():
    h = harness(
        [spawn("slow", "fast"), wait("w1"), wait("w2", timeout_ms=1000), says("ok")],
        [Child("slow", "s", seconds=300), Child("fast", "f", seconds=10)],
    )
    run(h)
    first = answers(h, "w1")["agents"]
    assert [first[id_of(h, order)]["status"] for order in ("slow", "fast")] == ["running", "completed"]
    assert h.clock.monotonic() < 30


def test_a_wait_has_an_end():
    h = harness([spawn("slow"), wait(timeout_ms=2000), says("ok")], [Child("slow", hangs=True)])
    run(h)
    assert answers(h)["timed_out"] is True
    assert 2 <= h.clock.monotonic() < 3


def test_more_input_and_closing_by_hand():
    async def main():
        h = harness([spawn("look"), wait("w1")], [Child("look", "one")])
        h.submit()
        task = h.start()
        await h.until(lambda: len(h.model.requests) == 2)
        thread_id = id_of(h, "look")
        h.model._steps += [
            response(call("send_input", "s", agent_id=thread_id, message="and b.py?", interrupt=True)),
            wait("w2"),
            response(call("close_agent", "x", agent_id=thread_id)),
            response(call("send_input", "late", agent_id=thread_id, message="hello?")),
            says("ok"),
        ]
        await task
        h.assert_done()
        assert answers(h, "w2")["agents"][thread_id]["message"] == "!and b.py?"
        assert json.loads(h.model.outputs()["x"])["message"] == "!and b.py?"
        assert h.model.outputs()["late"] == f"There is no open agent {thread_id}. Open agents: none."

    asyncio.run(main())


def test_there_is_a_limit_of_open_agents():
    h = harness([spawn("a", "b", "c"), says("ok")], [Child("a"), Child("b")], agents_limit=2)
    run(h)
    assert h.model.outputs()["c"].startswith("2 agents are open already.")


def test_an_agent_that_can_not_be_started_is_an_output():
    h = harness([spawn("a"), says("ok")], [Child("a", error="the queue is away")])

    async def main():
        h.submit()
        await h.run()
        h.assert_done()

    asyncio.run(main())
    assert "the queue is away" in h.model.outputs()["a"]


def test_what_agents_cost_counts_into_the_turns_budgets():
    h = harness(
        [spawn("a"), wait(), says("ok")],
        [Child("a", "x", tokens=1000, cost_usd=0.5)],
        spec=spec(budgets=Budgets(tokens=5000, cost_usd=2, model_requests=10)),
    )
    run(h)
    assert h.agents.orders[0].budgets.tokens == 5000 - 15
    assert h.agents.orders[0].budgets.model_requests == 9
    end = h.end()
    assert end.usage.total_tokens == 1000 + 3 * 15
    assert end.cost_usd == 0.5


def test_an_expensive_agent_ends_the_turn():
    h = harness(
        [spawn("a"), wait(), says("bye")],
        [Child("a", "x", tokens=9000)],
        spec=spec(budgets=Budgets(tokens=5000, when_spent="end")),
    )
    run(h)
    assert h.end().error.code == "budget_exceeded"


def test_an_interrupt_closes_the_agents_at_once():
    async def main():
        h = harness([spawn("a"), wait(timeout_ms=600_000)], [Child("a", hangs=True, tokens=7)])
        h.submit()
        task = h.start()
        await h.until(lambda: any(e.item.type == "sub_agent" and e.item.action == "wait" for e in h.of_type("item_started")))
        h.submit(Interrupt())
        await task
        h.assert_done()
        h.agents.assert_done()
        assert h.end().type == "turn_interrupted"
        assert h.end().usage.total_tokens == 2 * 15 + 7

    asyncio.run(main())


def test_after_a_crash_the_turn_still_knows_its_agents_and_what_they_cost():
    async def main():
        command = Command("ls", hangs=True)
        h = harness(
            [spawn("a"), wait("w1"), response(shell("ls", "c1")), wait("w2"), says("ok")],
            [Child("a", "x", tokens=100)],
            commands=[command],
        )
        h.submit()
        task = h.start()
        await command.started.wait()
        h.channel.lose_lease()
        await asyncio.gather(task, return_exceptions=True)
        h.next_owner()
        await h.run()
        h.channel.assert_clean()
        h.agents.assert_done()
        assert answers(h, "w2")["agents"][id_of(h, "a")]["message"] == "x"
        assert h.end().usage.total_tokens == 100 + 5 * 15

    asyncio.run(main())
