"""A budget that is used up is asked for: the turn waits without holding anything, and an answer resumes it under its id."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import ValidationError

from patchyard.agent.session import SessionOutcome
from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.ops import BudgetAnswer, Compact
from patchyard.protocol.policies import BudgetLimits, Budgets
from patchyard.testing.builders import response, says, shell, spec, turn_input, usage
from patchyard.testing.clock import FakeClock, settle
from patchyard.testing.harness import AgentHarness
from patchyard.testing.scripted_model import Hold
from patchyard.testing.scripted_sandbox import Command

DAY_MS = 24 * 3600 * 1000


def ls(number):
    return response(shell("ls", f"c{number}"), tokens=usage(8, 2))


@dataclass
class Case:
    """A budget, and steps of which the last one needs more of it."""

    limits: dict[str, Any]
    proposed: float
    steps: list[Any] = field(default_factory=lambda: [ls(1), ls(2), says("done")])
    commands: list[Command] = field(default_factory=lambda: [Command("ls"), Command("ls")])
    price: float | None = None
    final_answer: bool = True
    """Whether the model may still say something when there is no more."""

    @property
    def name(self):
        return next(iter(self.limits))

    def harness(self, steps=None, **more):
        given = spec(budgets=Budgets(**self.limits))
        return AgentHarness(
            self.steps if steps is None else steps, commands=self.commands, spec=given, price=self.price, **more
        )


def hanging():
    return [response(shell("hang", "c1", yield_time_ms=30_000)), says("done")]


CASES = {
    "model_requests": lambda: Case({"model_requests": 2}, 4, final_answer=False),
    "tool_calls": lambda: Case({"tool_calls": 1}, 2, [ls(1), says("done")], [Command("ls")]),
    "tokens": lambda: Case({"tokens": 14}, 34),
    "cost_usd": lambda: Case({"cost_usd": 0.14}, 0.34, price=0.01),
    "wall_time_s": lambda: Case({"wall_time_s": 10}, 20, hanging(), [Command("hang", hangs=True)], final_answer=False),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]()


def question_of(h):
    (question,) = h.of_type("budget_request")
    return question


def accept(h, question, **limits):
    return h.submit(
        BudgetAnswer(request_id=question.request_id, decision="accept", budgets=BudgetLimits(**limits) if limits else None)
    )


def reply(h, question, decision):
    return h.submit(BudgetAnswer(request_id=question.request_id, decision=decision))


async def parked(h):
    """Run until the turn waits parked; the newest question."""
    h.submit()
    assert await h.run() is SessionOutcome.PARKED
    return h.of_type("budget_request")[-1]


def turn_ids(h):
    return {line.turn_id for line in h.channel.lines if line.turn_id}


def notes(request):
    texts = [p.text for item in request.input if item.type == "message" for p in item.content if hasattr(p, "text")]
    return [text for text in texts if text.startswith("<budget>")]


def test_the_turn_parks_and_goes_on_with_more(case):
    async def main():
        h = case.harness()
        asked_at = h.clock.now_ms()
        question = await parked(h)
        assert question.budget == case.name
        assert question.limit == case.limits[case.name]
        assert question.used >= question.limit
        assert getattr(question.proposed, case.name) == case.proposed
        (waits,) = h.of_type("turn_parked")
        assert waits.reason == "budget"
        assert asked_at + DAY_MS <= waits.until <= asked_at + DAY_MS + 60_000
        assert all(process._ended.is_set() for process in h.box.processes), "nothing runs meanwhile"
        h.next_owner()
        answer = accept(h, question)
        await h.run()
        h.assert_done()
        assert h.channel.answers(answer) == ["request_resolved"]
        (resolved,) = h.of_type("request_resolved")
        assert (resolved.decision, resolved.budgets) == ("accept", question.proposed)
        assert h.end().type == "turn_completed"
        assert h.of_type("turn_recovered")[0].reason == "unparked"
        assert len(turn_ids(h)) == 1
        assert "A person gave this turn more budget" in notes(h.model.requests[-1])[-1]

    asyncio.run(main())


def test_an_answer_within_the_hold_time_needs_no_park(case):
    async def main():
        h = case.harness(clock=FakeClock(auto=False))
        h.submit()
        task = h.start()
        if case.name == "wall_time_s":
            await settle()
            await h.clock.advance(10)
        await h.until(lambda: h.of_type("budget_request"))
        accept(h, question_of(h))
        await task
        h.assert_done()
        assert h.end().type == "turn_completed"
        assert h.of_type("turn_parked", "turn_recovered") == []

    asyncio.run(main())


def test_a_decline_ends_the_turn_as_it_would_have_ended(case):
    async def main():
        steps = case.steps[:-1] + ([says("so far")] if case.final_answer else [])
        h = case.harness(steps)
        question = await parked(h)
        h.next_owner()
        answer = reply(h, question, "decline")
        await h.run()
        h.assert_done()
        assert h.channel.answers(answer) == ["request_resolved"]
        end = h.end()
        assert (end.type, end.error.code) == ("turn_failed", ErrorCode.BUDGET_EXCEEDED)
        assert len(h.of_type("budget_request")) == 1
        assert h.gate.ended[-1].status == "failed", "the work is kept"

    asyncio.run(main())


def test_nobody_answers(case):
    async def main():
        steps = case.steps[:-1] + ([says("so far")] if case.final_answer else [])
        h = case.harness(steps)
        await parked(h)
        h.clock._start_ms += DAY_MS
        h.next_owner()
        await h.run()
        h.assert_done()
        assert [event.decision for event in h.of_type("request_resolved")] == ["expired"]
        assert h.end().error.code is ErrorCode.BUDGET_EXCEEDED

    asyncio.run(main())


def test_cancel_ends_the_turn_as_interrupted(case):
    async def main():
        h = case.harness(case.steps[:-1])
        question = await parked(h)
        h.next_owner()
        reply(h, question, "cancel")
        await h.run()
        h.assert_done()
        assert h.end().type == "turn_interrupted"

    asyncio.run(main())


# --- what is raised


def test_a_person_may_name_other_limits_than_the_proposed_ones():
    async def main():
        h = CASES["tokens"]().harness()
        question = await parked(h)
        h.next_owner()
        accept(h, question, tokens=50, model_requests=400)
        await h.run()
        h.assert_done()
        (resolved,) = h.of_type("request_resolved")
        assert resolved.budgets == BudgetLimits(tokens=50, model_requests=400)
        assert "50 tokens" in notes(h.model.requests[-1])[-1]

    asyncio.run(main())


def test_limits_that_are_not_named_are_raised_as_proposed():
    async def main():
        h = CASES["tokens"]().harness()
        question = await parked(h)
        h.next_owner()
        accept(h, question, wall_time_s=7200)
        await h.run()
        h.assert_done()
        assert h.of_type("request_resolved")[0].budgets == BudgetLimits(tokens=34, wall_time_s=7200)

    asyncio.run(main())


def test_two_budgets_that_are_used_up_at_once_are_one_question():
    async def main():
        given = spec(budgets=Budgets(model_requests=2, tool_calls=2))
        h = AgentHarness([ls(1), ls(2), says("done")], commands=[Command("ls")] * 2, spec=given)
        question = await parked(h)
        assert question.proposed == BudgetLimits(model_requests=4, tool_calls=4)
        assert {meter.budget for meter in question.meters} == {"model_requests", "tool_calls", "wall_time_s"}
        h.next_owner()
        accept(h, question)
        await h.run()
        h.assert_done()
        assert h.end().type == "turn_completed"

    asyncio.run(main())


def test_raised_limits_outlive_a_crash_a_second_question_and_a_compaction():
    async def main():
        pause = Hold(asyncio.Event(), asyncio.Event())
        steps = [ls(1), ls(2), [pause], says("summary"), ls(3), ls(4), says("done")]
        given = spec(budgets=Budgets(model_requests=2))
        h = AgentHarness(steps, commands=[Command("ls")] * 4, spec=given)
        first = await parked(h)
        h.next_owner()
        accept(h, first, model_requests=5)
        task = h.start()
        await pause.reached.wait()
        h.channel.lose_lease()
        await asyncio.gather(task, return_exceptions=True)
        h.next_owner()
        h.submit(Compact())
        assert await h.run() is SessionOutcome.PARKED
        assert h.channel.restored().window_number == 1
        second = h.of_type("budget_request")[-1]
        assert (second.used, second.limit, second.proposed) == (5, 5, BudgetLimits(model_requests=7))
        h.next_owner()
        accept(h, second)
        await h.run()
        h.assert_done()
        assert (h.end().type, h.end().model_requests) == ("turn_completed", 6)
        assert h.channel.restored().turn is None

    asyncio.run(main())


def test_the_next_turn_begins_with_the_tasks_own_limits():
    async def main():
        h = AgentHarness(
            [ls(1), ls(2), says("done"), ls(3), ls(4)],
            commands=[Command("ls")] * 4,
            spec=spec(budgets=Budgets(model_requests=2)),
        )
        question = await parked(h)
        h.next_owner()
        accept(h, question)
        await h.run()
        h.next_owner()
        h.submit(turn_input("and more"))
        assert await h.run() is SessionOutcome.PARKED
        assert h.of_type("budget_request")[-1].limit == 2

    asyncio.run(main())


def test_the_model_is_told_to_wrap_up_near_the_new_limit_too():
    async def main():
        steps = [ls(n) for n in range(1, 6)]
        h = AgentHarness([*steps, says("done")], commands=[Command("ls")] * 5, spec=spec(budgets=Budgets(tokens=20)))
        question = await parked(h)
        assert (question.used, question.proposed.tokens) == (20, 40)
        h.next_owner()
        accept(h, question, tokens=60)
        await h.run()
        h.assert_done()
        told = notes(h.model.requests[-1])
        assert ["more budget" in text for text in told] == [True, False]
        assert "50 of 60 tokens" in told[1]

    asyncio.run(main())


def test_calls_beyond_the_budget_can_be_made_again():
    async def main():
        both = response(shell("a", "c1"), shell("b", "c2"))
        h = AgentHarness(
            [both, response(shell("b", "c3")), says("done")],
            commands=[Command("a"), Command("b")],
            spec=spec(budgets=Budgets(tool_calls=1)),
        )
        question = await parked(h)
        assert (question.used, question.proposed.tool_calls) == (2, 3)
        h.next_owner()
        accept(h, question, tool_calls=5)
        await h.run()
        h.assert_done()
        assert h.model.outputs()["c2"].startswith("Not run")
        assert [request.argv[-1] for request in h.box.requests] == ["a", "b"]

    asyncio.run(main())


# --- answers that are refused


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"tokens": 20}, "a limit of 20 tokens is used up already (20)"),
        ({"tokens": 15}, "used up already"),
        ({"tokens": 40, "model_requests": 100}, "can be raised, not lowered to 100"),
        ({"cost_usd": 3}, "no limit of US dollars"),
    ],
)
def test_limits_that_make_no_sense_are_refused_and_the_question_stays(limits, why):
    async def main():
        h = CASES["tokens"]().harness()
        question = await parked(h)
        h.next_owner()
        wrong = accept(h, question, **limits)
        right = accept(h, question)
        await h.run()
        h.assert_done()
        assert h.channel.answers(wrong) == ["op_rejected"]
        assert why in h.of_type("op_rejected")[0].message
        assert h.channel.answers(right) == ["request_resolved"]
        assert h.end().type == "turn_completed"

    asyncio.run(main())


def test_a_refused_answer_parks_the_turn_again_until_the_same_time():
    async def main():
        h = CASES["tokens"]().harness()
        question = await parked(h)
        h.next_owner()
        accept(h, question, tokens=1)
        assert await h.run() is SessionOutcome.PARKED
        first, second = h.of_type("turn_parked")
        assert first.until == second.until
        assert len(h.of_type("budget_request")) == 1
        assert h.channel.waiting == []

    asyncio.run(main())


def test_an_unknown_question_and_a_second_answer_are_refused():
    async def main():
        h = CASES["tokens"]().harness([ls(1), ls(2), says("so far")])
        question = await parked(h)
        h.next_owner()
        unknown = h.submit(BudgetAnswer(request_id="nobody-asked", decision="accept"))
        first = reply(h, question, "decline")
        second = accept(h, question)
        await h.run()
        h.assert_done()
        assert [h.channel.answers(s) for s in (unknown, first, second)] == [
            ["op_rejected"],
            ["request_resolved"],
            ["op_rejected"],
        ]
        assert [e.message for e in h.of_type("op_rejected")] == [
            "there is no open question with this id",
            "the question was answered already",
        ]

    asyncio.run(main())


def test_limits_go_with_accept_only():
    with pytest.raises(ValidationError, match="only be given with the decision `accept`"):
        BudgetAnswer(request_id="r", decision="decline", budgets=BudgetLimits(tokens=5))


@pytest.mark.parametrize("name", ["model_requests", "tool_calls", "tokens"])
def test_a_limit_that_is_no_number_for_other_programs_is_refused_before_the_turn_sees_it(name):
    for limits in (BudgetLimits, Budgets):
        assert getattr(limits(**{name: 2**63 - 1}), name) == 2**63 - 1
        with pytest.raises(ValidationError, match="less than or equal"):
            limits(**{name: 10**400})
