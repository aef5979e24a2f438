"""Settings of a turn and of later ones, when another worker goes on: what was accepted holds, and for the turn that was meant."""

import asyncio

import pytest

from patchyard.agent.session import SessionOutcome
from patchyard.protocol.ops import BudgetAnswer, Review, ReviewTarget, ThreadSettings, TurnOverrides, TurnSettings
from patchyard.protocol.policies import BudgetLimits, Budgets, ReadOnly, WorkspaceWrite
from patchyard.testing.builders import response, says, shell, spec, turn_input
from patchyard.testing.harness import AgentHarness
from patchyard.testing.scripted_sandbox import Command

HIGH = TurnOverrides(model="model-z", sandbox=ReadOnly())


def asking(*steps, commands=1):
    """A turn that may make one request, and asks for more."""
    return AgentHarness(steps, commands=[Command("ls")] * commands, spec=spec(budgets=Budgets(model_requests=1)))


async def parked(h):
    turn = h.submit()
    assert await h.run() is SessionOutcome.PARKED
    h.next_owner()
    return turn


def accept(h):
    question = h.of_type("budget_request")[-1]
    more = BudgetLimits(model_requests=9)
    return h.submit(BudgetAnswer(request_id=question.request_id, decision="accept", budgets=more))


async def next_turn(h):
    h.next_owner()
    h.submit(turn_input("again"))
    await h.run()
    h.assert_done()


def models(h):
    return [request.model for request in h.model.requests]


def ls(number):
    return response(shell("ls", f"c{number}"))


@pytest.mark.parametrize("parks_again", [True, False], ids=["parks again", "answered at once"])
def test_what_is_changed_for_a_parked_turn_holds_for_it_and_for_no_other(parks_again):
    async def main():
        h = asking(ls(1), ls(2), says("done"), says("next"), commands=2)
        turn = await parked(h)
        changed = h.submit(TurnSettings(turn_id=turn.id, overrides=TurnOverrides(model="model-y")))
        h.submit(TurnSettings(turn_id=turn.id, overrides=HIGH))
        if parks_again:
            assert await h.run() is SessionOutcome.PARKED
            h.next_owner()
        accept(h)
        await h.run()
        assert h.channel.answers(changed) == ["op_applied"]
        await next_turn(h)
        assert models(h) == ["model-x", "model-z", "model-z", "model-x"]
        assert [request.policy for request in h.box.requests] == [WorkspaceWrite(), ReadOnly()]

    asyncio.run(main())


def test_what_is_changed_for_later_turns_does_not_change_a_parked_one():
    async def main():
        h = asking(ls(1), says("done"), says("next"))
        turn = await parked(h)
        h.submit(ThreadSettings(overrides=HIGH))
        h.submit(TurnSettings(turn_id=turn.id, overrides=TurnOverrides(effort="low")))
        assert await h.run() is SessionOutcome.PARKED
        h.next_owner()
        accept(h)
        await h.run()
        await next_turn(h)
        assert models(h) == ["model-x", "model-x", "model-z"]
        assert [request.effort for request in h.model.requests] == [None, "low", None]

    asyncio.run(main())


@pytest.mark.parametrize("op", [turn_input(), Review(target=ReviewTarget())], ids=["turn", "review"])
def test_what_is_changed_while_a_turn_begins_is_kept_for_later_turns(op):
    async def main():
        h = AgentHarness([says("done"), says("next")])
        h.submit(op)
        task = h.start()
        await h.until(lambda: h.of_type("turn_started"))
        assert not [line for line in h.channel.lines if line.type == "turn_context"]
        h.submit(ThreadSettings(overrides=HIGH))
        await task
        kinds = [line.payload.type if line.type == "event_msg" else line.type for line in h.channel.lines]
        assert kinds.index("thread_settings_applied") < kinds.index("turn_context")
        await next_turn(h)
        assert models(h) == ["model-x", "model-z"]

    asyncio.run(main())


def test_settings_that_come_with_input_hold_though_its_worker_died_before_it_was_recorded():
    async def main():
        h = AgentHarness([says("done"), says("next")])
        h.submit(turn_input(overrides=HIGH))
        task = h.start()
        await h.until(lambda: h.of_type("turn_started"))
        assert not [line for line in h.channel.lines if line.type == "turn_context"]
        task.cancel()
        await asyncio.wait([task])
        h.next_owner()
        await h.run()
        await next_turn(h)
        assert models(h) == ["model-z", "model-z"]

    asyncio.run(main())
