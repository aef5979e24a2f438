import asyncio
from collections import Counter

import pytest

from patchyard.agent.session import SessionOutcome
from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.ops import ApprovalDecision, ExecApproval, Interrupt, PatchApproval, RecoverTurn, SuspendTurnAndShutdown
from patchyard.protocol.policies import ReadOnly
from patchyard.testing.builders import completed, done, message, patch_call, response, says, shell, spec, streamed, turn_input
from patchyard.testing.clock import FakeClock, settle
from patchyard.testing.harness import AgentHarness
from patchyard.testing.scripted_model import Fail, Hold
from patchyard.testing.scripted_sandbox import Command

ACCEPT, DECLINE = ApprovalDecision.ACCEPT, ApprovalDecision.DECLINE
SESSION, CANCEL = ApprovalDecision.ACCEPT_FOR_SESSION, ApprovalDecision.CANCEL
RM = "rm -rf build"


async def asked(h, count=1):
    for _ in range(20_000):
        found = h.of_type("exec_approval_request", "patch_approval_request")
        if len(found) >= count:
            return found[-1]
        await asyncio.sleep(0)
    raise AssertionError("nobody was asked")


def answer(h, question, decision=ACCEPT, **fields):
    kind = ExecApproval if question.type == "exec_approval_request" else PatchApproval
    return h.submit(kind(approval_id=question.approval_id, decision=decision, **fields))


def manual(*args, **fields):
    return AgentHarness(*args, clock=FakeClock(auto=False), **fields)


def test_an_accepted_command_runs():
    async def main():
        h = manual([response(shell(RM, "c1")), says("ok")], commands=[Command(RM)])
        h.submit()
        task = h.start()
        question = await asked(h)
        assert (question.item_id, question.command, question.cwd) == ("c1", ("bash", "-c", RM), "/workspace")
        reply = answer(h, question)
        await task
        h.assert_done()
        assert h.channel.answers(reply) == ["request_resolved"]
        assert h.box.requests[0].approval_id == question.approval_id

    asyncio.run(main())


def test_a_declined_command_is_an_output_and_the_turn_goes_on():
    async def main():
        h = manual([response(shell(RM, "c1")), says("ok")])
        h.submit()
        task = h.start()
        answer(h, await asked(h), DECLINE, message="keep the build")
        await task
        h.assert_done()
        assert "keep the build" in h.model.outputs()["c1"]
        (item,) = [e.item for e in h.of_type("item_completed") if e.item.type == "command_execution"]
        assert item.status == "declined"

    asyncio.run(main())


def test_cancel_ends_the_turn_as_interrupted():
    async def main():
        h = manual([response(shell(RM, "c1"))])
        h.submit()
        task = h.start()
        answer(h, await asked(h), CANCEL)
        await task
        h.assert_done()
        assert h.end().type == "turn_interrupted"

    asyncio.run(main())


def test_the_first_answer_wins():
    async def main():
        h = manual([response(shell(RM, "c1")), says("ok")], commands=[Command(RM)])
        h.submit()
        task = h.start()
        question = await asked(h)
        answer(h, question)
        late = answer(h, question, DECLINE)
        await task
        h.assert_done()
        assert h.channel.answers(late) == ["op_rejected"]
        assert h.of_type("op_rejected")[0].message == "the question was answered already"

    asyncio.run(main())


def test_an_answer_to_nothing_is_refused():
    async def main():
        h = AgentHarness()
        sub = h.submit(ExecApproval(approval_id="nope", decision=ACCEPT))
        await h.run()
        h.assert_done()
        assert h.channel.answers(sub) == ["op_rejected"]

    asyncio.run(main())


def test_an_answer_of_the_wrong_kind_is_refused():
    async def main():
        h = manual([response(shell(RM, "c1")), says("ok")], commands=[Command(RM)])
        h.submit()
        task = h.start()
        question = await asked(h)
        wrong = h.submit(PatchApproval(approval_id=question.approval_id, decision=ACCEPT))
        await settle()
        answer(h, question)
        await task
        h.assert_done()
        assert h.channel.answers(wrong) == ["op_rejected"]

    asyncio.run(main())


def test_accept_for_session_is_not_asked_again_for_the_same_command():
    async def main():
        h = manual([response(shell(RM, "c1")), response(shell(RM, "c2")), says("ok")], commands=[Command(RM), Command(RM)])
        h.submit()
        task = h.start()
        answer(h, await asked(h), SESSION)
        await task
        h.assert_done()
        assert len(h.of_type("exec_approval_request")) == 1

    asyncio.run(main())


def test_an_allowed_prefix_is_not_asked_again():
    async def main():
        steps = [response(shell("make a", "c1")), response(shell("make b", "c2")), says("ok")]
        h = manual(steps, commands=[Command("make a"), Command("make b")], spec=spec(approval="untrusted"))
        h.submit()
        task = h.start()
        answer(h, await asked(h), prefix_rule=("make",))
        await task
        h.assert_done()
        assert len(h.of_type("exec_approval_request")) == 1

    asyncio.run(main())


def test_untrusted_asks_for_everything_but_reading():
    async def main():
        steps = [response(shell("cat a | head", "c1"), shell("touch a", "c2")), says("ok")]
        h = manual(steps, commands=[Command("cat a | head"), Command("touch a")], spec=spec(approval="untrusted"))
        h.submit()
        task = h.start()
        question = await asked(h)
        assert question.item_id == "c2"
        answer(h, question)
        await task
        h.assert_done()

    asyncio.run(main())


def test_an_escalated_command_runs_outside_the_restrictions():
    async def main():
        call = shell("pip install x", "c1", sandbox_permissions="require_escalated", justification="Install x?")
        h = manual([response(call), says("ok")], commands=[Command("pip install x")])
        h.submit()
        task = h.start()
        question = await asked(h)
        assert question.reason == "Install x?"
        answer(h, question)
        await task
        h.assert_done()
        assert h.box.requests[0].policy.type == "danger-full-access"

    asyncio.run(main())


PATCH = "*** Begin Patch\n*** Add File: a.txt\n+a\n*** End Patch"


def test_a_patch_in_a_read_only_sandbox_asks():
    async def main():
        h = manual([response(patch_call(PATCH, "c1")), says("ok")], spec=spec(sandbox=ReadOnly()))
        h.submit()
        task = h.start()
        question = await asked(h)
        assert [c.path for c in question.changes] == ["a.txt"]
        answer(h, question)
        await task
        h.assert_done()
        assert h.box.files == {"/workspace/a.txt": b"a\n"}

    asyncio.run(main())


# --- parking


def test_a_question_longer_than_the_hold_time_parks_and_an_answer_resumes_the_turn():
    async def main():
        h = AgentHarness([response(shell("ls", "c1"), shell(RM, "c2")), says("ok")], commands=[Command("ls"), Command(RM)])
        turn = h.submit()
        assert await h.run() is SessionOutcome.PARKED
        assert h.types()[-1] == "turn_parked"
        assert h.channel.parked_until == h.of_type("turn_parked")[0].until
        answer_later = await asked(h)
        h.next_owner()
        answer(h, answer_later)
        assert await h.run() is SessionOutcome.IDLE
        h.assert_done()
        assert h.of_type("turn_recovered")[0].reason == "unparked"
        assert len(h.of_type("exec_approval_request")) == 1
        assert {line.turn_id for line in h.channel.lines} == {turn.id}
        starts = [e.item.id for e in h.of_type("item_started") if e.item.type == "command_execution"]
        assert starts == ["c1", "c2"]

    asyncio.run(main())


def test_calls_behind_a_parked_one_run_after_the_answer():
    async def main():
        h = AgentHarness(
            [response(shell(RM, "c1"), patch_call(PATCH, "c2"), shell("ls", "c3")), says("ok")],
            commands=[Command(RM), Command("ls")],
        )
        h.submit()
        assert await h.run() is SessionOutcome.PARKED
        assert h.box.files == {}
        question = await asked(h)
        h.next_owner()
        answer(h, question)
        await h.run()
        h.assert_done()
        ends = [e.item.id for e in h.of_type("item_completed") if e.item.id in ("c1", "c2", "c3")]
        assert ends == ["c1", "c2", "c3"]

    asyncio.run(main())


def test_a_question_that_nobody_answers_expires():
    async def main():
        h = AgentHarness([response(shell(RM, "c1")), says("ok")], question_expiry_s=600)
        h.submit()
        assert await h.run() is SessionOutcome.PARKED
        await h.clock.sleep(601)
        h.next_owner()
        assert await h.run() is SessionOutcome.IDLE
        h.assert_done()
        assert h.of_type("request_resolved")[0].decision == "expired"
        assert "Nobody answered" in h.model.outputs()["c1"]

    asyncio.run(main())


def test_a_long_retry_after_parks_instead_of_holding_the_slot():
    async def main():
        h = AgentHarness([[Fail(ErrorCode.MODEL_RATE_LIMITED, retry_after_s=900)], says("ok")])
        h.submit()
        assert await h.run() is SessionOutcome.PARKED
        assert h.of_type("turn_parked")[0].reason == "retry_time"
        h.next_owner()
        assert await h.run() is SessionOutcome.IDLE
        h.assert_done()

    asyncio.run(main())


def test_a_rate_limit_that_outlasts_all_tries_parks_and_never_fails_the_turn():
    async def main():
        limited = [Fail(ErrorCode.MODEL_RATE_LIMITED, retry_after_s=1)]
        h = AgentHarness([limited] * 6 + [says("ok")])
        h.submit()
        assert await h.run() is SessionOutcome.PARKED
        (parked,) = h.of_type("turn_parked")
        assert parked.reason == "retry_time"
        assert "the turn waits and tries again" in h.of_type("stream_error")[-1].message
        h.next_owner()
        assert await h.run() is SessionOutcome.IDLE
        assert h.end().type == "turn_completed"
        h.assert_done()

    asyncio.run(main())


def test_an_interrupt_of_a_parked_turn_that_was_written_elsewhere_leaves_nothing_open():
    async def main():
        h = AgentHarness([response(shell(RM, "c1")), says("ok")])
        h.submit()
        assert await h.run() is SessionOutcome.PARKED
        # The queue ends a parked turn by itself; it does not know about items.
        h.next_owner()
        left, h.channel._open_items = h.channel._open_items, set()
        from patchyard.protocol.events import TurnInterrupted
        from patchyard.protocol.model_items import TokenUsage

        await h.channel.commit([TurnInterrupted(usage=TokenUsage())], turn_id=h.channel.active_turn)
        h.channel._open_items = left
        h.session = h.new_session(h.channel.restored())
        h.submit(turn_input("again"))
        await h.run()
        assert h.model.outputs()["c1"] == "aborted"
        assert h.end().type == "turn_completed"
        started, completed = (Counter(e.item.id for e in h.of_type(f"item_{kind}")) for kind in ("started", "completed"))
        assert started == completed
        (command,) = [e.item for e in h.of_type("item_completed") if e.item.id == "c1"]
        assert command.status == "interrupted"

    asyncio.run(main())


# --- crash and hand-over


async def crash_while(h, reached):
    """Run until `reached`, then vanish without a word."""
    h.submit()
    task = h.start()
    await reached.wait()
    await settle()
    task.cancel()
    await asyncio.wait([task])


def test_a_crash_in_a_command_is_told_and_the_same_turn_goes_on():
    async def main():
        command = Command("pytest", hangs=True)
        h = manual([response(message("I test."), shell("pytest", "c1")), says("ok")], commands=[command])
        await crash_while(h, command.started)
        h.next_owner()
        h.clock._auto = True
        assert await h.run() is SessionOutcome.IDLE
        h.channel.assert_clean()
        assert h.model.outputs()["c1"] == "interrupted by a worker restart"
        (item,) = [e.item for e in h.of_type("item_completed") if e.item.type == "command_execution"]
        assert item.status == "interrupted"
        recovered = h.of_type("turn_recovered")[0]
        assert (recovered.segment, recovered.reason) == (1, "worker_lost")
        assert len(h.of_type("turn_started", "turn_completed")) == 2
        assert h.end().model_requests == 2

    asyncio.run(main())


def test_a_crash_before_the_input_was_recorded_loses_nothing():
    async def main():
        reached = asyncio.Event()
        h = AgentHarness([says("ok")])
        real = h.source.instructions

        async def slow(folder=""):
            reached.set()
            await asyncio.Event().wait()

        h.source.instructions = slow
        await crash_while(h, reached)
        h.source.instructions = real
        h.next_owner()
        await h.run()
        h.assert_done()
        assert h.types().count("turn_started") == 1
        inputs = [p.text for i in h.model.requests[0].input for p in i.content]
        assert inputs[-1] == "Fix the bug."

    asyncio.run(main())


def test_a_crash_while_a_person_is_asked_asks_on():
    async def main():
        h = manual([response(shell(RM, "c1")), says("ok")], commands=[Command(RM)])
        h.submit()
        task = h.start()
        question = await asked(h)
        task.cancel()
        await asyncio.wait([task])
        h.next_owner()
        answer(h, question)
        await h.run()
        h.assert_done()
        assert len(h.of_type("exec_approval_request")) == 1

    asyncio.run(main())


def test_steers_survive_a_crash():
    async def main():
        pause = Hold(asyncio.Event(), asyncio.Event())
        h = manual([[pause], says("one"), says("two")])
        h.submit()
        task = h.start()
        await pause.reached.wait()
        h.submit(turn_input("more"))
        await settle()
        task.cancel()
        await asyncio.wait([task])
        h.next_owner()
        h.clock._auto = True
        await h.run()
        h.assert_done()
        assert h.model.requests[-1].input[-1].content[0].text == "more"

    asyncio.run(main())


def test_suspend_hands_over_without_a_terminal_event():
    async def main():
        pause = Hold(asyncio.Event(), asyncio.Event())
        events = streamed("half of it", item_id="m1")
        h = AgentHarness([[*events[:-1], pause], says("ok")], recovery_reason="hand_over")
        h.submit()
        task = h.start()
        await pause.reached.wait()
        h.session.suspend()
        assert await task is SessionOutcome.SUSPENDED
        assert h.of_type("turn_completed", "turn_failed", "turn_interrupted") == []
        h.next_owner()
        assert await h.run() is SessionOutcome.IDLE
        h.assert_done()
        assert h.of_type("turn_recovered")[0].reason == "hand_over"

    asyncio.run(main())


def test_suspend_keeps_outputs_that_are_there():
    async def main():
        command = Command("slow", hangs=True)
        steps = [response(shell("fast", "c1"), shell("slow", "c2")), says("ok")]
        h = AgentHarness(steps, commands=[Command("fast", b"F"), command])
        h.submit()
        task = h.start()
        await command.started.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        h.session.suspend()
        assert await task is SessionOutcome.SUSPENDED
        assert h.box.processes[1].killed_with == 9
        h.next_owner()
        await h.run()
        h.assert_done()
        assert h.model.outputs()["c1"].endswith("Output:\nF")
        assert h.model.outputs()["c2"] == "interrupted by a worker restart"

    asyncio.run(main())


def test_suspend_as_an_op():
    async def main():
        pause = Hold(asyncio.Event(), asyncio.Event())
        h = AgentHarness([[pause]])
        h.submit()
        task = h.start()
        await pause.reached.wait()
        sub = h.submit(SuspendTurnAndShutdown())
        assert await task is SessionOutcome.SUSPENDED
        assert h.channel.answers(sub) == ["op_applied"]

    asyncio.run(main())


def test_recover_turn_as_an_op():
    async def main():
        pause = Hold(asyncio.Event(), asyncio.Event())
        h = AgentHarness([[pause], says("ok")])
        turn = h.submit()
        task = h.start()
        await pause.reached.wait()
        h.session.suspend()
        await task
        h.next_owner()
        sub = h.submit(RecoverTurn(turn_id=turn.id))
        await h.run()
        h.assert_done()
        assert h.channel.answers(sub) == ["op_applied"]

    asyncio.run(main())


def test_an_interrupt_after_a_recovery_ends_the_same_turn():
    async def main():
        pause, again = (Hold(asyncio.Event(), asyncio.Event()) for _ in range(2))
        h = AgentHarness([[pause], [again]])
        turn = h.submit()
        task = h.start()
        await pause.reached.wait()
        h.session.suspend()
        await task
        h.next_owner()
        task = h.start()
        await again.reached.wait()
        h.submit(Interrupt(turn_id=turn.id))
        await task
        h.assert_done()
        assert h.end().type == "turn_interrupted"

    asyncio.run(main())


@pytest.mark.parametrize("cut", range(2, 14))
def test_a_crash_after_any_write_leaves_a_turn_that_can_be_finished(cut):
    """Cut the record after each commit in turn: the successor always ends with one clean turn."""

    async def main():
        h = AgentHarness(
            [response(message("look"), shell("ls", "c1")), response(patch_call(PATCH, "c2")), says("done")] * 2,
            commands=[Command("ls")] * 2,
        )
        real = h.channel._write
        stopped = asyncio.Event()

        def write(*args):
            if h.channel.commits >= cut:
                stopped.set()
                h.channel.lose_lease()
                h.channel._check_lease()
            real(*args)

        h.channel._write = write
        h.submit()
        await asyncio.wait([h.start()])
        if not stopped.is_set():
            return
        old = h.channel
        h.next_owner()
        h.model.requests.clear()
        h.model._steps = [says("done")]
        await h.run()
        h.channel.assert_clean()
        assert len(h.of_type("turn_completed")) == 1
        assert [line.payload for line in h.channel.lines[: len(old.lines)]] == [line.payload for line in old.lines]
        ordinals = [line.ordinal for line in h.channel.lines]
        assert ordinals == list(range(len(ordinals)))

    asyncio.run(main())


def test_a_stream_that_was_complete_is_not_asked_again_after_a_crash():
    async def main():
        h = AgentHarness([[*done(shell("ls", "c1")), completed()], says("ok")], commands=[Command("ls", b"x")])
        h.submit()
        await h.run()
        h.assert_done()
        assert h.end().model_requests == 2

    asyncio.run(main())
