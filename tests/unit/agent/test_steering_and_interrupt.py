import asyncio

import pytest

from patchyard.agent.ports import LeaseLost
from patchyard.agent.session import SessionOutcome
from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.ops import InterAgentCommunication, Interrupt, Shutdown, StartIfIdle, Steer, TurnOverrides
from patchyard.protocol.policies import ReadOnly
from patchyard.testing.builders import completed, done, message, patch_call, response, says, shell, streamed, turn_input
from patchyard.testing.clock import FakeClock, settle
from patchyard.testing.harness import AgentHarness
from patchyard.testing.scripted_model import Fail, Hold, Pause
from patchyard.testing.scripted_sandbox import Command


def hold():
    return Hold(asyncio.Event(), asyncio.Event())


def texts(request):
    return [part.text for item in request.input if item.type == "message" for part in item.content]


# --- steering


def test_a_steer_is_delivered_after_the_outputs_of_the_step():
    async def main():
        pause = hold()
        h = AgentHarness([[*done(shell("ls", "c1")), pause, completed()], says("ok")], commands=[Command("ls")])
        first = h.submit()
        task = h.start()
        await pause.reached.wait()
        steer = h.submit(turn_input("also the docs"))
        await settle()
        pause.until.set()
        assert await task is SessionOutcome.IDLE
        h.assert_done()
        kinds = [getattr(i, "role", i.type) for i in h.model.requests[1].input[3:]]
        assert kinds == ["function_call", "function_call_output", "user"]
        assert texts(h.model.requests[1])[-1] == "also the docs"
        assert h.channel.answers(steer) == ["item_started", "item_completed"]
        assert {line.turn_id for line in h.channel.lines} == {first.id}

    asyncio.run(main())


def test_a_steer_forces_another_step_although_the_model_had_finished():
    async def main():
        pause = hold()
        h = AgentHarness([[*done(message("done")), pause, completed()], says("done again")])
        h.submit()
        task = h.start()
        await pause.reached.wait()
        h.submit(turn_input("one"))
        h.submit(turn_input("two"))
        await settle()
        pause.until.set()
        await task
        h.assert_done()
        assert texts(h.model.requests[1])[-2:] == ["one", "two"]
        assert h.end().last_agent_message == "done again"

    asyncio.run(main())


def test_a_steer_that_slips_in_before_the_end_is_answered_in_the_same_turn():
    async def main():
        h = AgentHarness([says("done"), says("done again")], gate={"at_end_s": 1})
        h.submit()
        task = h.start()
        await h.until(lambda: h.gate.ended)
        h.submit(turn_input("wait"))
        await task
        h.assert_done()
        assert len(h.of_type("turn_started")) == 1

    asyncio.run(main())


def test_a_steer_that_finish_turn_sees_first_is_taken():
    async def main():
        h = AgentHarness([says("done"), says("done again")])
        real = h.channel.finish_turn
        calls = 0

        async def finish_turn(payloads, **fields):
            nonlocal calls
            calls += 1
            if calls == 1:
                h.submit(turn_input("just in time"))
            return await real(payloads, **fields)

        h.channel.finish_turn = finish_turn
        h.submit()
        await h.run()
        h.assert_done()
        assert texts(h.model.requests[1])[-1] == "just in time"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        (turn_input("x", mode=StartIfIdle()), "not_idle"),
        (turn_input("x", mode=Steer(expected_turn_id="other")), "expected_turn_mismatch"),
        (turn_input("  "), "empty_input"),
        (turn_input("x", output_schema={"type": "object"}), "output_schema_mismatch"),
    ],
)
def test_input_that_a_running_turn_can_not_take_is_refused_with_the_reason(op, reason):
    async def main():
        pause = hold()
        h = AgentHarness([[pause, *says("done")]])
        h.submit()
        task = h.start()
        await pause.reached.wait()
        refused = h.submit(op)
        await settle()
        pause.until.set()
        await task
        h.assert_done()
        assert h.channel.answers(refused) == ["op_rejected"]
        assert h.of_type("op_rejected")[0].reason == reason

    asyncio.run(main())


def test_a_steer_without_a_turn_is_refused():
    async def main():
        h = AgentHarness()
        sub = h.submit(turn_input("x", mode=Steer(expected_turn_id="other")))
        h.channel.active_turn = None
        assert await h.run() is SessionOutcome.IDLE
        assert h.channel.answers(sub) == ["op_rejected"]
        assert h.of_type("op_rejected")[0].reason == "no_active_turn"
        h.assert_done()

    asyncio.run(main())


def test_a_steer_with_the_right_turn_is_taken():
    async def main():
        pause = hold()
        h = AgentHarness([[pause, *says("done")], says("again")])
        first = h.submit()
        task = h.start()
        await pause.reached.wait()
        h.submit(turn_input("more", mode=Steer(expected_turn_id=first.id)))
        await settle()
        pause.until.set()
        await task
        h.assert_done()

    asyncio.run(main())


def test_settings_in_a_steer_count_for_later_turns():
    async def main():
        pause = hold()
        h = AgentHarness([[pause, *says("done")], says("again"), says("next turn")])
        h.submit()
        task = h.start()
        await pause.reached.wait()
        h.submit(turn_input("more", overrides=TurnOverrides(model="model-z", sandbox=ReadOnly())))
        await settle()
        pause.until.set()
        await task
        h.session = h.new_session(h.channel.restored())
        h.submit()
        await h.run()
        h.assert_done()
        assert [r.model for r in h.model.requests] == ["model-x", "model-x", "model-z"]
        assert "What you may do has changed" in "".join(texts(h.model.requests[2]))

    asyncio.run(main())


def test_a_message_of_another_agent_steers_and_starts():
    async def main():
        h = AgentHarness([says("ok")])
        op = InterAgentCommunication(author_thread_id="t2", message="tests are green", trigger_turn=True)
        sub = h.submit(op)
        h.channel.active_turn = sub.id
        await h.run()
        h.assert_done()
        assert texts(h.model.requests[0])[-1] == "Message from the agent of thread t2:\ntests are green"

    asyncio.run(main())


# --- interrupt


def interrupted(h, *, status="interrupted"):
    end = h.end()
    assert end.type == "turn_interrupted"
    h.assert_done()
    return end


def test_interrupt_while_the_stream_runs_keeps_the_partial_text():
    async def main():
        pause = hold()
        events = streamed("The answer is fortytwo", item_id="m1")
        h = AgentHarness([[*events[:-1], pause]])
        h.submit()
        task = h.start()
        await pause.reached.wait()
        stop = h.submit(Interrupt())
        assert await task is SessionOutcome.IDLE
        interrupted(h)
        assert h.model.closed_early == 1
        (item,) = [e.item for e in h.of_type("item_completed") if e.item.type == "agent_message"]
        assert (item.text, item.status) == ("The answer is fortytwo", "interrupted")
        assert h.channel.answers(stop) == ["op_applied"]
        note = h.channel.restored().history[-1]
        assert note.content[0].text.startswith("<turn_aborted>")

    asyncio.run(main())


def test_interrupt_while_a_command_runs_kills_its_tree_and_answers_the_call():
    async def main():
        command = Command("sleep 99", b"partial", hangs=True)
        h = AgentHarness([response(shell("sleep 99", "c1"))], commands=[command], clock=FakeClock(auto=False))
        h.submit()
        task = h.start()
        await command.started.wait()
        await h.clock.advance(1.9)
        h.submit(Interrupt())
        await task
        interrupted(h)
        assert h.clock.monotonic() == 1.9
        assert h.box.processes[0].killed_with == 9
        (item,) = [e.item for e in h.of_type("item_completed") if e.item.type == "command_execution"]
        assert (item.status, item.aggregated_output) == ("interrupted", "partial")
        outputs = [i for i in h.channel.restored().history if i.type == "function_call_output"]
        assert [o.output for o in outputs] == ["Wall time: 1.9 seconds\naborted by user"]

    asyncio.run(main())


def test_interrupt_keeps_the_output_of_calls_that_ended():
    async def main():
        command = Command("b", hangs=True)
        h = AgentHarness([response(shell("a", "c1"), shell("b", "c2"))], commands=[Command("a", b"A"), command])
        h.submit()
        task = h.start()
        await command.started.wait()
        await settle()
        h.submit(Interrupt())
        await task
        interrupted(h)
        outputs = {i.call_id: i.output for i in h.channel.restored().history if i.type == "function_call_output"}
        assert outputs["c1"].endswith("Output:\nA")
        assert outputs["c2"].endswith("aborted by user")

    asyncio.run(main())


def test_interrupt_while_it_waits_to_try_again():
    async def main():
        h = AgentHarness([[Fail(ErrorCode.MODEL_STREAM_FAILED)]], clock=FakeClock(auto=False))
        h.submit()
        task = h.start()
        await h.until(lambda: h.of_type("stream_error"))
        h.submit(Interrupt())
        await task
        interrupted(h)

    asyncio.run(main())


def test_interrupt_while_the_box_starts():
    async def main():
        h = AgentHarness([response(shell("ls", "c1"))], source={"start_s": 100}, clock=FakeClock(auto=False))
        h.submit()
        task = h.start()
        await h.until(lambda: h.source.asked)
        h.submit(Interrupt())
        await task
        interrupted(h)

    asyncio.run(main())


def test_interrupt_while_a_person_is_asked_voids_the_question():
    async def main():
        h = AgentHarness([response(shell("rm -rf x", "c1"))], clock=FakeClock(auto=False))
        h.submit()
        task = h.start()
        await h.until(lambda: h.of_type("exec_approval_request"))
        h.submit(Interrupt())
        await task
        interrupted(h)
        assert h.of_type("request_resolved")[0].decision == "void"

    asyncio.run(main())


def test_interrupt_while_the_gate_works():
    async def main():
        pause = asyncio.Event()
        h = AgentHarness([says("ok")], clock=FakeClock(auto=False))
        real = h.gate.before_complete

        async def slow(outcome):
            await real(outcome)
            pause.set()
            await asyncio.Event().wait()

        h.gate.before_complete = slow
        h.submit()
        task = h.start()
        await pause.wait()
        h.submit(Interrupt())
        await task
        interrupted(h)

    asyncio.run(main())


def test_interrupt_drops_undelivered_steers_and_names_them():
    async def main():
        pause = hold()
        h = AgentHarness([[pause]])
        h.submit()
        task = h.start()
        await pause.reached.wait()
        a, b = h.submit(turn_input("a")), h.submit(turn_input("b"))
        h.submit(Interrupt())
        await task
        assert interrupted(h).dropped_submission_ids == (a.id, b.id)

    asyncio.run(main())


def test_an_interrupt_for_another_turn_is_refused():
    async def main():
        pause = hold()
        h = AgentHarness([[pause, *says("ok")]])
        h.submit()
        task = h.start()
        await pause.reached.wait()
        stop = h.submit(Interrupt(turn_id="other"))
        await settle()
        pause.until.set()
        await task
        h.assert_done()
        assert h.of_type("op_rejected")[0].reason == "expected_turn_mismatch"
        assert h.channel.answers(stop) == ["op_rejected"]
        assert h.end().type == "turn_completed"

    asyncio.run(main())


def test_an_interrupt_of_an_idle_thread_is_answered_at_once():
    async def main():
        h = AgentHarness()
        stop = h.submit(Interrupt())
        assert await h.run() is SessionOutcome.IDLE
        assert h.channel.answers(stop) == ["op_rejected"]
        h.assert_done()

    asyncio.run(main())


def test_an_interrupt_that_is_there_before_the_turn_begins():
    async def main():
        h = AgentHarness()
        sub = h.submit()
        h.submit(Interrupt())
        await h.run()
        interrupted(h)
        assert h.types().count("turn_started") == 1
        history = h.channel.restored().history
        assert any(i.type == "message" and i.content[0].text == "Fix the bug." for i in history)
        assert h.channel.answers(sub)[:2] == ["session_configured", "turn_started"]

    asyncio.run(main())


def test_a_slow_gate_does_not_hold_up_an_interrupt():
    async def main():
        pause = hold()
        h = AgentHarness([[pause]], gate={"at_end_s": 60})
        h.submit()
        task = h.start()
        await pause.reached.wait()
        before = h.clock.monotonic()
        h.submit(Interrupt())
        await task
        assert h.clock.monotonic() - before <= 1
        interrupted(h)
        assert h.of_type("warning")

    asyncio.run(main())


def test_a_process_that_does_not_die_does_not_hold_up_an_interrupt():
    async def main():
        command = Command("stuck", hangs=True)
        h = AgentHarness([response(shell("stuck", "c1", yield_time_ms=30_000))], commands=[command], clock=FakeClock())
        h.submit()
        task = h.start()
        await command.started.wait()

        async def kill(signal=9):
            await asyncio.Event().wait()

        h.box.processes[0].kill = kill
        h.submit(Interrupt())
        await task
        assert h.end().type == "turn_interrupted"
        h.channel.assert_clean()
        assert h.clock.monotonic() <= 1
        h.box.processes[0]._task.cancel()

    asyncio.run(main())


def test_the_next_turn_reads_that_the_last_one_was_interrupted():
    async def main():
        pause = hold()
        h = AgentHarness([[pause], says("ok")], linger_s=5)
        h.submit()
        task = h.start()
        await pause.reached.wait()
        h.submit(Interrupt())
        await h.until(lambda: h.of_type("turn_interrupted"))
        h.submit(turn_input("go on"))
        await task
        h.assert_done()
        assert texts(h.model.requests[1])[-2].startswith("<turn_aborted>")
        assert texts(h.model.requests[1])[-1] == "go on"

    asyncio.run(main())


def test_shutdown_interrupts_and_closes():
    async def main():
        pause = hold()
        h = AgentHarness([[pause]])
        h.submit()
        task = h.start()
        await pause.reached.wait()
        sub = h.submit(Shutdown())
        assert await task is SessionOutcome.CLOSED
        interrupted(h)
        assert h.types()[-1] == "thread_closed"
        assert h.channel.answers(sub) == ["thread_closed"]

    asyncio.run(main())


def test_shutdown_of_an_idle_thread():
    async def main():
        h = AgentHarness()
        h.submit(Shutdown())
        assert await h.run() is SessionOutcome.CLOSED
        assert h.types() == ["thread_closed"]
        h.assert_done()

    asyncio.run(main())


def test_a_lost_lease_stops_everything_and_writes_nothing():
    async def main():
        command = Command("sleep 99", hangs=True)
        h = AgentHarness([response(shell("sleep 99", "c1"))], commands=[command])
        h.submit()
        task = h.start()
        await command.started.wait()
        before = len(h.channel.lines)
        h.channel.lose_lease()
        with pytest.raises(LeaseLost):
            await task
        assert len(h.channel.lines) == before
        assert h.box.processes[0].killed_with == 9

    asyncio.run(main())


def test_interrupt_while_a_patch_waits_behind_a_command():
    async def main():
        command = Command("slow", hangs=True)
        patch = patch_call("*** Begin Patch\n*** Delete File: a\n*** End Patch", "c2")
        h = AgentHarness([response(shell("slow", "c1"), patch)], commands=[command], files={"/workspace/a": b""})
        h.submit()
        task = h.start()
        await command.started.wait()
        h.submit(Interrupt())
        await task
        interrupted(h)
        assert h.box.files == {"/workspace/a": b""}

    asyncio.run(main())


def test_a_pause_in_the_stream_is_no_end():
    async def main():
        h = AgentHarness([[Pause(100), *says("ok")]])
        h.submit()
        await h.run()
        h.assert_done()

    asyncio.run(main())


def test_a_channel_that_gives_the_lease_back_with_the_last_record():
    """As the real queue does: after the end neither `receive` nor `commit` works any more."""

    async def main(steps, *, stop):
        pause = hold()
        h = AgentHarness([[pause, *steps]])
        real = h.channel.finish_turn

        async def finish_turn(payloads, **fields):
            done = await real(payloads, **fields)
            if done:
                h.channel.lose_lease()
                await settle()
            return done

        h.channel.finish_turn = finish_turn
        h.submit()
        task = h.start()
        await pause.reached.wait()
        sub = h.submit(Interrupt()) if stop else None
        pause.until.set()
        with pytest.raises(LeaseLost):
            await task
        h.channel.assert_clean()
        span = h.telemetry.spans[0]
        assert span.attributes["patchyard.turn.status"] == ("interrupted" if stop else "completed")
        if sub is not None:
            assert h.channel.answers(sub) == ["op_applied"]

    asyncio.run(main(says("ok"), stop=False))
    asyncio.run(main([], stop=True))


def test_an_interrupt_that_comes_while_a_steer_stands_in_the_way_of_the_end():
    async def main():
        h = AgentHarness([says("done")])
        real = h.channel.finish_turn
        calls = 0

        async def finish_turn(payloads, **fields):
            nonlocal calls
            calls += 1
            if calls == 1:
                h.submit(turn_input("just in time"))
                h.submit(Interrupt())
            return await real(payloads, **fields)

        h.channel.finish_turn = finish_turn
        h.submit()
        await h.run()
        interrupted(h)
        assert len(h.of_type("op_applied")) == 1

    asyncio.run(main())
