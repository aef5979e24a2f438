import asyncio
from typing import get_args

import pytest

from patchyard.agent.session import SessionOutcome
from patchyard.protocol import ops
from patchyard.protocol.ops import ApprovalDecision, Interrupt, ThreadSettings, TurnOverrides, TurnSettings
from patchyard.protocol.policies import ReadOnly
from patchyard.testing.builders import response, says, shell, turn_input
from patchyard.testing.clock import settle
from patchyard.testing.harness import AgentHarness
from patchyard.testing.scripted_model import Hold
from patchyard.testing.scripted_sandbox import Command

FIELDS = {
    "turn_input": {"items": ()},
    "recover_turn": {"turn_id": "t"},
    "thread_settings": {"overrides": TurnOverrides(model="m")},
    "turn_settings": {"turn_id": "t", "overrides": TurnOverrides()},
    "inter_agent_communication": {"author_thread_id": "t", "message": "hi"},
    "exec_approval": {"approval_id": "a", "decision": ApprovalDecision.ACCEPT},
    "patch_approval": {"approval_id": "a", "decision": ApprovalDecision.ACCEPT},
    "user_input_answer": {"request_id": "r", "answers": {}},
    "budget_answer": {"request_id": "r", "decision": "accept"},
    "request_permissions_response": {"request_id": "r", "decision": ApprovalDecision.ACCEPT},
    "dynamic_tool_response": {"call_id": "c", "output": "", "success": True},
    "resolve_elicitation": {"server": "s", "request_id": "r", "decision": "accept"},
    "run_user_shell_command": {"command": "ls"},
}
ALL_OPS = get_args(get_args(ops.Op)[0])


@pytest.mark.parametrize("kind", ALL_OPS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_every_op_is_answered_exactly_once(kind, busy):
    async def main():
        pause = Hold(asyncio.Event(), asyncio.Event())
        h = AgentHarness([[pause, *says("ok")], says("more")], commands=[Command("ls")])
        pause.until.set() if not busy else None
        if busy:
            h.submit()
            task = h.start()
            await pause.reached.wait()
        name = kind.model_fields["type"].default
        sub = h.submit(kind(**FIELDS.get(name, {})))
        if busy:
            await settle()
            pause.until.set()
            await task
        else:
            h.channel.active_turn = None
            await h.run()
        answers = [a for a in h.channel.answers(sub) if not a.startswith(("item_", "session_"))] or ["the item"]
        assert len(answers) == 1, answers
        assert sub.id not in h.channel.waiting

    asyncio.run(main())


def test_thread_settings_count_for_the_next_turn():
    async def main():
        h = AgentHarness([says("ok")])
        h.submit(ThreadSettings(overrides=TurnOverrides(model="model-z", effort="low")))
        h.submit()
        await h.run()
        h.assert_done()
        assert (h.model.requests[0].model, h.model.requests[0].effort) == ("model-z", "low")
        assert h.of_type("thread_settings_applied")[0].overrides.model == "model-z"

    asyncio.run(main())


def test_turn_settings_count_from_the_next_step_of_this_turn_only():
    async def main():
        pause = Hold(asyncio.Event(), asyncio.Event())
        h = AgentHarness([[pause, *response(shell("ls", "c1"))], says("ok"), says("next")], commands=[Command("ls")])
        turn = h.submit()
        task = h.start()
        await pause.reached.wait()
        h.submit(TurnSettings(turn_id=turn.id, overrides=TurnOverrides(sandbox=ReadOnly(), model="model-z")))
        await settle()
        pause.until.set()
        await task
        h.session = h.new_session(h.channel.restored())
        h.submit()
        await h.run()
        h.assert_done()
        assert [r.model for r in h.model.requests] == ["model-x", "model-z", "model-x"]
        assert h.box.requests[0].policy == ReadOnly()

    asyncio.run(main())


def test_a_session_without_anything_to_do_is_idle():
    async def main():
        h = AgentHarness(first_wait_s=5)
        assert await h.run() is SessionOutcome.IDLE
        assert h.clock.monotonic() == 5

    asyncio.run(main())


def test_a_session_that_lingers_takes_the_next_turn():
    async def main():
        h = AgentHarness([says("one"), says("two")], linger_s=30)
        h.submit()
        task = h.start()
        await h.until(lambda: h.of_type("turn_completed"))
        h.submit(turn_input("again"))
        await task
        h.assert_done()
        assert len(h.of_type("turn_completed")) == 2

    asyncio.run(main())


def test_200_turns_in_one_process():
    async def main():
        harnesses = [
            AgentHarness([response(shell("ls", "c1")), says("ok")], commands=[Command("ls", b"x", seconds=1)])
            for _ in range(200)
        ]
        for h in harnesses:
            h.submit()
        outcomes = await asyncio.gather(*(h.run() for h in harnesses))
        assert set(outcomes) == {SessionOutcome.IDLE}
        for h in harnesses:
            h.assert_done()

    asyncio.run(main())


def test_two_interrupts_are_both_answered():
    async def main():
        pause = Hold(asyncio.Event(), asyncio.Event())
        h = AgentHarness([[pause]])
        h.submit()
        task = h.start()
        await pause.reached.wait()
        a, b = h.submit(Interrupt()), h.submit(Interrupt())
        await task
        h.assert_done()
        assert h.channel.answers(a) == ["op_applied"]
        assert len(h.channel.answers(b)) == 1

    asyncio.run(main())
