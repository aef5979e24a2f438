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
        [Child("a", "x", tokens=1000, cost_usd=0.5, model_requests=2, tool_calls=4)],
        spec=spec(budgets=Budgets(tokens=5000, cost_usd=2, model_requests=10)),
    )
    run(h)
    end = h.end()
    assert end.usage.total_tokens == 1000 + 3 * 15
    assert end.cost_usd == 0.5
    assert (end.model_requests, end.tool_calls) == (3 + 2, 2 + 4)


def test_agents_that_work_at_once_share_what_the_turn_has():
    budgets = Budgets(tokens=3015, cost_usd=9, model_requests=28, tool_calls=12, wall_time_s=600)
    h = harness([spawn("a", "b", "c"), wait(), says("ok")], [Child("a"), Child("b"), Child("c")], spec=spec(budgets=budgets))
    run(h)
    given = [order.budgets for order in h.agents.orders]
    assert [(b.model_requests, b.tool_calls) for b in given] == [(9, 3), (6, 2), (4, 1)]
    assert sum(b.tokens for b in given) < 3000
    assert sum(b.cost_usd for b in given) < 9
    assert {b.wall_time_s for b in given} == {600}, "they work at the same time"


def test_what_is_set_aside_for_agents_is_not_the_turns_to_spend():
    steps = [spawn("a", "b"), *(response(shell("ls", f"c{n}")) for n in range(3)), says("stopped")]
    h = harness(
        steps,
        [Child("a", hangs=True), Child("b", hangs=True)],
        spec=spec(budgets=Budgets(model_requests=10)),
        commands=[Command("ls") for _ in range(3)],
    )
    run(h)
    given = [order.budgets.model_requests for order in h.agents.orders]
    assert given == [3, 2]
    assert h.end().model_requests == len(h.model.requests) == 10 - sum(given)


def test_an_agent_that_rests_gives_back_what_it_did_not_use():
    steps = [spawn("a"), wait("w1"), *(response(shell("ls", f"c{n}")) for n in range(4)), says("done")]
    h = harness(
        steps,
        [Child("a", "x", model_requests=1)],
        spec=spec(budgets=Budgets(model_requests=8)),
        commands=[Command("ls") for _ in range(4)],
    )
    run(h)
    assert h.end().model_requests == 8


def test_too_little_is_not_shared():
    h = harness([spawn("a"), says("ok")], [], spec=spec(budgets=Budgets(model_requests=2)))
    run(h)
    assert h.model.outputs()["a"].startswith("The turn's budget (model requests) is too far used for an agent.")


def test_a_resting_agent_works_again_only_on_a_share_that_is_free():
    async def main():
        h = harness(
            [spawn("a"), wait("w1")],
            [Child("a", "one", model_requests=3)],
            spec=spec(budgets=Budgets(model_requests=12)),
        )
        h.submit()
        task = h.start()
        await h.until(lambda: len(h.model.requests) == 2)
        thread_id = id_of(h, "a")
        h.model._steps += [
            response(call("send_input", "s1", agent_id=thread_id, message="more")),
            wait("w2"),
            response(call("send_input", "s2", agent_id=thread_id, message="even more")),
            says("ok"),
        ]
        h.agents.child(thread_id)
        await h.until(lambda: "s1" in h.model.outputs())
        h.agents.child(thread_id).model_requests = 6
        await task
        assert h.agents.orders[0].budgets.model_requests == 3
        assert h.model.outputs()["s1"].startswith("Sent.")
        assert "too far used to give this agent more to do" in h.model.outputs()["s2"]
        assert h.end().model_requests == len(h.model.requests) + 6

    asyncio.run(main())


def parked(h):
    (event,) = h.of_type("turn_parked")
    return event


def test_a_wait_for_an_agent_without_a_slot_gives_the_slot_up():
    async def main():
        h = harness([spawn("a"), wait(timeout_ms=60_000), says("ok")], [Child("a", "x", seconds=20, queued=True)])
        h.submit()
        assert await h.run() == "parked"
        assert 5 <= h.clock.monotonic() < 6
        assert parked(h).reason == "agents"
        assert h.channel.parked_for == (id_of(h, "a"),)
        assert h.channel.parked_until == parked(h).until
        await h.clock.sleep(15)
        h.next_owner()
        await h.run()
        h.channel.assert_clean()
        h.agents.assert_done()
        assert answers(h)["agents"][id_of(h, "a")] == {"status": "completed", "message": "x"}
        waits = [e.item for e in h.of_type("item_started", "item_completed") if e.item.type == "sub_agent"]
        assert [(item.action, item.status) for item in waits[2:]] == [("wait", "in_progress"), ("wait", "completed")]
        assert h.end().type == "turn_completed"

    asyncio.run(main())


def test_a_wait_that_an_earlier_version_left_open_is_answered_and_not_begun_again():
    async def main():
        h = harness([spawn("a"), wait(timeout_ms=600_000), says("ok")], [Child("a", hangs=True)])
        h.submit()
        task = h.start()
        await h.until(lambda: any(e.item.type == "sub_agent" and e.item.action == "wait" for e in h.of_type("item_started")))
        h.channel.lose_lease()
        await asyncio.gather(task, return_exceptions=True)
        for number, line in enumerate(h.channel.lines):
            if getattr(line.payload, "type", "") == "item_started" and line.payload.item.id == "w":
                item = line.payload.item.model_copy(update={"until": None})
                payload = line.payload.model_copy(update={"item": item})
                h.channel.lines[number] = line.model_copy(update={"payload": payload})
        h.next_owner()
        await h.run()
        h.assert_done()
        assert h.model.outputs()["w"] == "interrupted by a worker restart"
        assert h.end().type == "turn_completed"

    asyncio.run(main())


def test_a_wait_for_a_working_agent_holds_the_slot_for_the_hold_time_only():
    async def main():
        h = harness([spawn("a"), wait(timeout_ms=600_000)], [Child("a", hangs=True)], hold_time_s=30)
        h.submit()
        assert await h.run() == "parked"
        assert 30 <= h.clock.monotonic() < 31

    asyncio.run(main())


def test_the_end_of_a_wait_is_the_same_over_a_park():
    async def main():
        h = harness([spawn("a"), wait(timeout_ms=60_000), says("ok")], [Child("a", hangs=True)], hold_time_s=30)
        h.submit()
        assert await h.run() == "parked"
        await h.clock.sleep(29)
        h.next_owner()
        before = h.clock.monotonic()
        await h.run()
        assert answers(h)["timed_out"] is True
        assert h.clock.monotonic() - before < 3
        assert h.end().type == "turn_completed"

    asyncio.run(main())


def test_commands_that_run_are_a_reason_to_stay_unless_an_agent_needs_the_slot():
    for queued, outcome, seconds in ((False, "idle", 600), (True, "parked", 5)):

        async def main(queued=queued, outcome=outcome, seconds=seconds):
            serve = Command("serve", b"up", hangs=True)
            steps = [response(shell("serve", "c1", yield_time_ms=250)), spawn("a"), wait(timeout_ms=600_000), says("ok")]
            h = harness(steps, [Child("a", hangs=True, queued=queued)], commands=[serve], hold_time_s=30)
            h.submit()
            assert await h.run() == outcome
            assert seconds <= h.clock.monotonic() < seconds + 3

        asyncio.run(main())


def test_input_ends_a_wait():
    async def main():
        h = harness([spawn("a"), wait(timeout_ms=600_000), says("ok")], [Child("a", hangs=True)])
        h.submit()
        task = h.start()
        await h.until(lambda: any(e.item.type == "sub_agent" and e.item.action == "wait" for e in h.of_type("item_started")))
        h.submit()
        await task
        h.assert_done()
        assert answers(h) == {"agents": {id_of(h, "a"): {"status": "running"}}, "timed_out": False, "new_input": True}
        assert h.clock.monotonic() < 5

    asyncio.run(main())


def test_a_wait_goes_on_after_a_crash():
    async def main():
        h = harness([spawn("a"), wait(timeout_ms=600_000), says("ok")], [Child("a", "x", seconds=50)])
        h.submit()
        task = h.start()
        await h.until(lambda: any(e.item.type == "sub_agent" and e.item.action == "wait" for e in h.of_type("item_started")))
        h.channel.lose_lease()
        await asyncio.gather(task, return_exceptions=True)
        h.next_owner()
        await h.run()
        h.assert_done()
        assert answers(h)["agents"][id_of(h, "a")]["message"] == "x"
        assert h.end().tool_calls == 2

    asyncio.run(main())


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
