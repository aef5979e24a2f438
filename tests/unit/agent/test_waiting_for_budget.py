"""While a turn waits for more budget: who is asked at all, whose time runs, and what else may happen meanwhile."""

import asyncio

import pytest

from patchyard.agent.session import SessionOutcome
from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.ops import ApprovalDecision, BudgetAnswer, ExecApproval, Interrupt, Review
from patchyard.protocol.policies import Budgets, GranularApproval
from patchyard.protocol.tasks import GitSource, HookEvent, HookSpec
from patchyard.testing.agents import Child, ScriptedAgents
from patchyard.testing.builders import call, response, says, shell, spec, streamed, turn_input, usage
from patchyard.testing.clock import FakeClock, settle
from patchyard.testing.harness import AgentHarness
from patchyard.testing.scripted_model import Fail, Hold, Pause
from patchyard.testing.scripted_sandbox import Command

GRANULAR = GranularApproval(sandbox_approval=False, rules=False, mcp_elicitations=False)


def step(number=1, tokens=10):
    return response(shell("ls", f"c{number}"), tokens=usage(tokens - 2, 2))


def harness(steps, *, commands=1, approval="on-request", **more):
    limits = more.pop("limits", {"tokens": 10})
    listed = [Command("ls")] * commands if isinstance(commands, int) else commands
    return AgentHarness(steps, commands=listed, spec=spec(budgets=Budgets(**limits), approval=approval), **more)


async def asked(h):
    await h.until(lambda: h.of_type("budget_request"))
    return h.of_type("budget_request")[-1]


def answer(h, question, decision="accept"):
    return h.submit(BudgetAnswer(request_id=question.request_id, decision=decision))


def manual(*args, **more):
    return harness(*args, clock=FakeClock(auto=False), **more)


# --- who is asked


@pytest.mark.parametrize(
    ("approval", "when_spent", "asks"),
    [
        ("on-request", None, True),
        ("untrusted", None, True),
        (GRANULAR, None, True),
        ("never", None, False),
        ("never", "ask", True),
        ("on-request", "end", False),
        (GRANULAR, "end", False),
    ],
    ids=str,
)
def test_who_is_asked(approval, when_spent, asks):
    async def main():
        steps = [step(), *([] if asks else [says("so far")])]
        h = harness(steps, approval=approval, limits={"tokens": 10, "when_spent": when_spent})
        h.submit()
        await h.run()
        h.model.assert_done()
        assert bool(h.of_type("budget_request")) is asks

    asyncio.run(main())


def test_an_agent_of_an_agent_never_asks():
    async def main():
        h = harness([step(), says("so far")], agent_depth=1)
        h.submit()
        await h.run()
        h.assert_done()
        assert h.end().error.code is ErrorCode.BUDGET_EXCEEDED

    asyncio.run(main())


def test_a_review_never_asks():
    async def main():
        h = harness([step(), says("{}")])
        h.submit(Review())
        await h.run()
        h.assert_done()
        assert h.end().error.code is ErrorCode.BUDGET_EXCEEDED

    asyncio.run(main())


def test_a_turn_that_is_done_with_its_last_request_asks_nobody():
    async def main():
        h = harness([says("done")], commands=0, limits={"model_requests": 1})
        h.submit()
        await h.run()
        h.assert_done()
        assert h.end().type == "turn_completed"

    asyncio.run(main())


def test_a_round_that_the_gate_wants_is_asked_for():
    async def main():
        h = harness(
            [says("done"), says("better")], commands=0, limits={"model_requests": 1}, gate={"feedback": ["the tests fail"]}
        )
        h.submit()
        assert await h.run() is SessionOutcome.PARKED
        question = h.of_type("budget_request")[-1]
        h.next_owner()
        answer(h, question)
        await h.run()
        h.assert_done()
        assert h.end().last_agent_message == "better"

    asyncio.run(main())


# --- whose time runs


def test_waiting_is_no_wall_time():
    async def main():
        steps = [step(), [Pause(20), *says("done")]]
        h = manual(steps, limits={"tokens": 10, "wall_time_s": 30})
        h.submit()
        task = h.start()
        question = await asked(h)
        await h.clock.advance(100)
        answer(h, question)
        await h.until(lambda: h.of_type("request_resolved"))
        await h.clock.advance(20)
        await task
        h.assert_done()
        assert (h.end().type, h.end().duration_ms) == ("turn_completed", 20_000)

    asyncio.run(main())


def test_waiting_is_no_wall_time_for_the_next_owner_either():
    async def main():
        steps = [[Pause(7), *step()], [Pause(20), *says("done")]]
        h = manual(steps, limits={"tokens": 10, "wall_time_s": 30})
        h.submit()
        task = h.start()
        await settle()
        await h.clock.advance(7)
        question = await asked(h)
        await h.clock.advance(100)
        h.channel.lose_lease()
        await asyncio.gather(task, return_exceptions=True)
        assert h.channel.restored().turn.active_ms == 7000
        h.next_owner()
        task = h.start()
        await h.until(lambda: h.of_type("turn_recovered"))
        await h.clock.advance(60)
        assert h.channel.restored().turn.active_ms == 7000
        answer(h, question)
        await h.until(lambda: h.of_type("request_resolved"))
        await h.clock.advance(20)
        await task
        h.assert_done()
        assert (h.end().type, h.end().duration_ms) == ("turn_completed", 27_000)
        assert len(h.of_type("budget_request")) == 1

    asyncio.run(main())


def test_the_wall_time_of_a_hanging_stream_is_asked_for_and_the_request_is_made_again():
    async def main():
        cut = [*streamed("Half", item_id="m1")[:-1], Hold(asyncio.Event(), asyncio.Event())]
        h = manual([cut, says("whole")], commands=0, limits={"wall_time_s": 30})
        h.submit()
        task = h.start()
        await settle()
        await h.clock.advance(30)
        answer(h, await asked(h))
        await task
        h.assert_done()
        assert h.end().type == "turn_completed"
        texts = [(e.item.text, e.item.status) for e in h.of_type("item_completed") if e.item.type == "agent_message"]
        assert texts == [("Half", "interrupted"), ("whole", "completed")]

    asyncio.run(main())


def test_the_raised_wall_time_is_kept_too():
    async def main():
        h = manual([[Hold(asyncio.Event(), asyncio.Event())]] * 2, commands=0, limits={"wall_time_s": 30})
        h.submit()
        task = h.start()
        await settle()
        await h.clock.advance(30)
        answer(h, await asked(h))
        await h.until(lambda: len(h.model.requests) == 2)
        await h.clock.advance(29)
        assert len(h.of_type("budget_request")) == 1
        await h.clock.advance(1)
        await h.until(lambda: len(h.of_type("budget_request")) == 2)
        again = h.of_type("budget_request")[-1]
        assert (again.limit, again.proposed.wall_time_s) == (60, 90)
        answer(h, again, "decline")
        await task
        h.assert_done()
        assert h.end().error.code is ErrorCode.BUDGET_EXCEEDED
        assert h.end().duration_ms == 60_000

    asyncio.run(main())


def test_a_question_of_a_call_that_runs_out_of_time_is_void():
    async def main():
        rm = "rm -rf build"
        steps = [response(shell(rm, "c1")), says("done")]
        h = manual(steps, commands=0, limits={"wall_time_s": 30})
        h.submit()
        task = h.start()
        await h.until(lambda: h.of_type("exec_approval_request"))
        (approval,) = h.of_type("exec_approval_request")
        await h.clock.advance(30)
        question = await asked(h)
        late = h.submit(ExecApproval(approval_id=approval.approval_id, decision=ApprovalDecision.ACCEPT))
        answer(h, question)
        await task
        h.assert_done()
        assert h.channel.answers(late) == ["op_rejected"]
        assert [e.decision for e in h.of_type("request_resolved")] == ["void", "accept"]
        assert "wall time is used up" in h.model.outputs()["c1"]

    asyncio.run(main())


def test_wall_time_that_is_over_before_the_first_step_is_asked_for_and_hooks_run_again():
    async def main():
        hooks = {HookEvent.SESSION_START: (HookSpec(command="slow", timeout_s=600),)}
        commands = [Command("slow", b"first", hangs=True), Command("slow", b"remember this")]
        given = spec(budgets=Budgets(wall_time_s=30), hooks=hooks, repository=GitSource(url="https://example.org/r.git"))
        h = AgentHarness([says("done")], commands=commands, spec=given, clock=FakeClock(auto=False))
        h.submit()
        task = h.start()
        await commands[0].started.wait()
        await h.clock.advance(30)
        answer(h, await asked(h))
        await task
        h.assert_done()
        assert h.end().type == "turn_completed"
        assert len(h.of_type("turn_started")) == 1
        texts = [p.text for i in h.model.requests[0].input if i.type == "message" for p in i.content]
        assert any("remember this" in text for text in texts)
        assert not any("<budget>" in text for text in texts), "it was told nothing that could be raised"

    asyncio.run(main())


def test_wall_time_that_is_over_before_the_first_step_survives_a_park():
    async def main():
        hooks = {HookEvent.SESSION_START: (HookSpec(command="slow", timeout_s=600),)}
        commands = [Command("slow", hangs=True), Command("slow")]
        h = AgentHarness([says("done")], commands=commands, spec=spec(budgets=Budgets(wall_time_s=30), hooks=hooks))
        h.submit()
        assert await h.run() is SessionOutcome.PARKED
        question = h.of_type("budget_request")[-1]
        h.next_owner()
        answer(h, question)
        await h.run()
        h.assert_done()
        assert h.end().type == "turn_completed"
        users = [i for i in h.model.requests[0].input if i.type == "message" and i.content[0].text == "Fix the bug."]
        assert len(users) == 1

    asyncio.run(main())


def test_a_command_that_was_approved_after_a_park_may_run_out_of_time():
    async def main():
        rm = "rm -rf build"
        steps = [response(shell(rm, "c1", yield_time_ms=30_000)), says("done")]
        h = harness(steps, commands=[Command(rm, hangs=True)], limits={"wall_time_s": 130})
        h.submit()
        assert await h.run() is SessionOutcome.PARKED
        h.next_owner()
        h.submit(ExecApproval(approval_id=h.of_type("exec_approval_request")[0].approval_id, decision=ApprovalDecision.ACCEPT))
        assert await h.run() is SessionOutcome.PARKED
        question = h.of_type("budget_request")[-1]
        h.next_owner()
        answer(h, question)
        await h.run()
        h.assert_done()
        assert "wall time is used up" in h.model.outputs()["c1"]
        assert h.end().type == "turn_completed"

    asyncio.run(main())


def test_a_budget_that_is_used_up_while_the_window_is_compacted():
    async def main():
        big = response(shell("ls", "c1"), tokens=usage(900, 10))
        steps = [big, [Hold(asyncio.Event(), asyncio.Event())], says("summary"), says("done")]
        h = manual(steps, limits={"wall_time_s": 30}, model_context_window=1000)
        h.submit()
        task = h.start()
        await h.until(lambda: len(h.model.requests) == 2)
        await h.clock.advance(30)
        answer(h, await asked(h))
        await task
        h.assert_done()
        assert [r.kind for r in h.model.requests] == ["turn", "compaction", "compaction", "turn"]
        assert h.end().type == "turn_completed"

    asyncio.run(main())


def test_a_budget_that_a_broken_request_uses_up():
    async def main():
        h = harness(
            [[Fail(ErrorCode.MODEL_RATE_LIMITED, retry_after_s=20)], says("done")], commands=0, limits={"wall_time_s": 10}
        )
        h.submit()
        assert await h.run() is SessionOutcome.PARKED
        question = h.of_type("budget_request")[-1]
        h.next_owner()
        answer(h, question)
        await h.run()
        h.assert_done()
        assert h.end().type == "turn_completed"

    asyncio.run(main())


# --- what else may happen


@pytest.mark.parametrize("limits", [{"tokens": 10}, {"wall_time_s": 10}], ids=str)
def test_an_interrupt_ends_the_waiting(limits):
    async def main():
        first = step() if "tokens" in limits else [Hold(asyncio.Event(), asyncio.Event())]
        h = manual([first], commands=("tokens" in limits and 1) or [], limits=limits)
        h.submit()
        task = h.start()
        await settle()
        await h.clock.advance(10)
        await asked(h)
        stop = h.submit(Interrupt())
        await task
        h.assert_done()
        assert h.end().type == "turn_interrupted"
        assert h.channel.answers(stop) == ["op_applied"]
        assert [e.decision for e in h.of_type("request_resolved")] == ["void"]

    asyncio.run(main())


def test_an_interrupt_that_comes_with_the_end_of_the_time_wins():
    async def main():
        pause = Hold(asyncio.Event(), asyncio.Event())
        h = manual([[pause]], commands=0, limits={"wall_time_s": 30})
        h.submit()
        task = h.start()
        await pause.reached.wait()
        turn = h.session._turn
        turn.stop("wall_time")
        h.submit(Interrupt())
        await task
        h.assert_done()
        assert h.end().type == "turn_interrupted"

    asyncio.run(main())


def test_a_hand_over_keeps_the_question():
    async def main():
        h = manual([step(), says("done")])
        h.submit()
        task = h.start()
        question = await asked(h)
        h.session.suspend()
        assert await task is SessionOutcome.SUSPENDED
        h.next_owner()
        task = h.start()
        await h.until(lambda: h.of_type("turn_recovered"))
        answer(h, question)
        await task
        h.assert_done()
        assert h.end().type == "turn_completed"
        assert len(h.of_type("budget_request")) == 1

    asyncio.run(main())


def test_input_that_comes_meanwhile_is_delivered_after_the_answer():
    async def main():
        h = manual([step(), says("done")])
        h.submit()
        task = h.start()
        question = await asked(h)
        h.submit(turn_input("and quickly"))
        await settle()
        assert len(h.model.requests) == 1
        answer(h, question)
        await task
        h.assert_done()
        texts = [p.text for i in h.model.requests[1].input if i.type == "message" for p in i.content]
        assert texts[-1] == "and quickly"

    asyncio.run(main())


@pytest.mark.parametrize("decision", ["accept", "decline"])
def test_a_crash_right_after_the_answer_does_not_ask_again(decision):
    async def main():
        pause = Hold(asyncio.Event(), asyncio.Event())
        h = manual([step(), [pause], says("done")])
        h.submit()
        task = h.start()
        answer(h, await asked(h), decision)
        await pause.reached.wait()
        h.channel.lose_lease()
        await asyncio.gather(task, return_exceptions=True)
        h.next_owner()
        await h.run()
        h.channel.assert_clean()
        assert len(h.of_type("budget_request")) == 1
        if decision == "accept":
            assert h.end().type == "turn_completed"
            assert h.channel.restored().turn is None
        else:
            assert h.end().error.code is ErrorCode.BUDGET_EXCEEDED

    asyncio.run(main())


def test_a_crash_before_the_answer_is_written_takes_it_again():
    async def main():
        h = manual([step(), says("done")])
        h.submit()
        task = h.start()
        question = await asked(h)
        h.channel.lose_lease()
        reply = answer(h, question)
        await asyncio.gather(task, return_exceptions=True)
        assert h.of_type("request_resolved") == []
        h.next_owner()
        await h.run()
        h.assert_done()
        assert h.channel.answers(reply) == ["request_resolved"]
        assert h.end().type == "turn_completed"

    asyncio.run(main())


def test_input_that_came_while_the_turn_was_parked_is_in_the_next_request():
    async def main():
        h = harness([step(), says("done")])
        h.submit()
        assert await h.run() is SessionOutcome.PARKED
        question = h.of_type("budget_request")[-1]
        h.next_owner()
        h.submit(turn_input("and quickly"))
        answer(h, question)
        await h.run()
        h.assert_done()
        assert h.model.requests[1].input[-1].content[0].text == "and quickly"

    asyncio.run(main())


def test_what_is_set_aside_for_agents_counts_as_used_in_the_question():
    async def main():
        clock = FakeClock()
        agents = ScriptedAgents(clock, [Child("a", hangs=True)])
        steps = [response(call("spawn_agent", "s", message="a")), *(step(n) for n in range(1, 5)), says("done")]
        limits = spec(budgets=Budgets(model_requests=6))
        h = AgentHarness(steps, commands=[Command("ls")] * 4, spec=limits, clock=clock, agents=agents)
        h.submit()
        assert await h.run() is SessionOutcome.PARKED
        question = h.of_type("budget_request")[-1]
        assert (question.used, question.limit, question.proposed.model_requests) == (6, 6, 12)
        assert len(h.model.requests) == 5, "one is the agent's"
        h.next_owner()
        answer(h, question)
        await h.run()
        h.assert_done()
        assert h.end().type == "turn_completed"

    asyncio.run(main())
