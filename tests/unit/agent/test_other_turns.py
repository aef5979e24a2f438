"""Reviews, people's own commands, and commands that outlive an interrupted turn."""

import asyncio
import json

import pytest

from patchyard.agent.session import SessionOutcome
from patchyard.agent.turns.kinds.review import read_findings
from patchyard.protocol.ops import (
    CleanBackgroundTerminals,
    Interrupt,
    Review,
    ReviewTarget,
    RunUserShellCommand,
    Shutdown,
)
from patchyard.protocol.policies import ReadOnly
from patchyard.testing.builders import call, patch_call, response, says, shell, spec, turn_input
from patchyard.testing.clock import FakeClock, settle
from patchyard.testing.harness import AgentHarness
from patchyard.testing.scripted_model import Hold
from patchyard.testing.scripted_sandbox import Command

FINDING = {"title": "Loses data", "body": "When b is empty.", "priority": 1, "confidence": 0.9, "path": "a.py", "line_start": 3}
REPORT = json.dumps(
    {"findings": [{**FINDING, "title": "Slow", "priority": 3}, FINDING], "correct": False, "explanation": "No."}
)


def hold():
    return Hold(asyncio.Event(), asyncio.Event())


def run(h, op):
    async def main():
        sub = h.submit(op)
        await h.run()
        h.assert_done()
        return sub

    return asyncio.run(main())


async def one_after_the_other(h, op):
    h.submit(op)
    task = h.start()
    await h.until(lambda: h.of_type("turn_completed"))
    h.submit()
    await task
    h.assert_done()


# --- reviews


def test_a_review_reports_its_findings_as_data():
    h = AgentHarness(
        [response(shell("git diff", "c1")), says(f"```json\n{REPORT}\n```")], commands=[Command("git diff", b"+x")]
    )
    sub = run(h, Review())
    (started,) = h.of_type("turn_started")
    assert started.kind == "review"
    (review,) = h.of_type("review_completed")
    assert (review.correct, [f.title for f in review.findings]) == (False, ["Loses data", "Slow"])
    assert "- [P1] Loses data (a.py:3)" in h.end().last_agent_message
    assert h.model.requests[0].kind == "review"
    assert h.model.requests[0].output_schema is not None
    asked = [p.text for i in h.model.requests[0].input if i.type == "message" for p in i.content]
    assert any("you are the reviewer" in text for text in asked)
    assert asked[-1].startswith("Review the uncommitted changes")
    assert [e.item.content[0].text for e in h.of_type("item_completed") if e.item.id == sub.id] == [asked[-1]]
    assert [o.kind for o in h.gate.ended] == ["review"]
    assert h.gate.asked == []


def test_a_review_can_not_change_anything_and_asks_nobody():
    patch = "*** Begin Patch\n*** Add File: a.py\n+x\n*** End Patch"
    h = AgentHarness(
        [response(patch_call(patch, "c1"), shell("ls", "c2")), says(REPORT)],
        commands=[Command("ls")],
        spec=spec(approval="untrusted"),
    )
    run(h, Review(target=ReviewTarget(base="main", instructions="Mind the locks.")))
    assert h.box.applied == []
    assert isinstance(h.box.requests[0].policy, ReadOnly)
    assert "Mind the locks." in str(h.model.requests[0].input)


def test_after_a_review_the_thread_may_write_again():
    async def main():
        h = AgentHarness([says(REPORT), response(shell("make", "c1")), says("ok")], commands=[Command("make")], linger_s=1)
        await one_after_the_other(h, Review())
        assert not isinstance(h.box.requests[0].policy, ReadOnly)

    asyncio.run(main())


def test_an_answer_in_no_form_is_shown_as_it_came():
    h = AgentHarness([says("Looks fine to me.")])
    run(h, Review())
    assert h.of_type("review_completed") == []
    assert "not in the asked form" in h.of_type("warning")[0].message
    assert h.end().last_agent_message == "Looks fine to me."


@pytest.mark.parametrize("text", [None, "", "{}", "[]", '{"findings": [{"title": 1}], "correct": true}', "{" * 100_000])
def test_what_is_no_review(text):
    assert read_findings(text) is None


def test_a_review_is_not_steered():
    async def main():
        held = hold()
        h = AgentHarness([[held, *says(REPORT)]])
        h.submit(Review())
        task = h.start()
        await held.reached.wait()
        steer, second = h.submit(turn_input("more")), h.submit(Review())
        await settle()
        held.until.set()
        await task
        assert [e.reason for e in h.of_type("op_rejected")] == ["active_turn_not_steerable", "not_idle"]
        assert h.channel.answers(steer) == h.channel.answers(second) == ["op_rejected"]

    asyncio.run(main())


# --- a person's own command


def test_a_persons_command_is_a_turn_without_a_model():
    h = AgentHarness(commands=[Command("rm -rf build", b"gone\n")], spec=spec(approval="untrusted"))
    sub = run(h, RunUserShellCommand(command="rm -rf build"))
    (started,) = h.of_type("turn_started")
    assert started.kind == "user_shell"
    (item,) = [e.item for e in h.of_type("item_completed")]
    assert (item.type, item.command, item.status, item.exit_code) == ("command_execution", "rm -rf build", "completed", 0)
    assert h.end().model_requests == 0
    assert h.channel.answers(sub).count("turn_started") == 1
    (outcome,) = h.gate.ended
    assert (outcome.kind, outcome.changed_files) == ("user_shell", True)


def test_the_next_turn_knows_of_it():
    async def main():
        h = AgentHarness([says("ok")], commands=[Command("make", b"broken\n", code=2)], linger_s=1)
        await one_after_the_other(h, RunUserShellCommand(command="make"))
        told = str(h.model.requests[0].input)
        assert "<user_shell_command>" in told
        assert "exit code 2" in told
        assert "broken" in told

    asyncio.run(main())


def test_it_waits_for_the_running_turn():
    async def main():
        held = hold()
        h = AgentHarness([[held, *says("ok")]], commands=[Command("ls")])
        turn = h.submit()
        task = h.start()
        await held.reached.wait()
        sub = h.submit(RunUserShellCommand(command="ls"))
        await settle()
        assert len(h.of_type("turn_started")) == 1
        held.until.set()
        await task
        h.assert_done()
        turns = [line.turn_id for line in h.channel.lines if line.type == "event_msg" and line.payload.type == "turn_started"]
        assert turns == [turn.id, sub.id]

    asyncio.run(main())


def test_it_can_be_interrupted():
    async def main():
        command = Command("sleep", hangs=True)
        h = AgentHarness(commands=[command])
        h.submit(RunUserShellCommand(command="sleep"))
        task = h.start()
        await command.started.wait()
        stop = h.submit(Interrupt())
        await task
        h.assert_done()
        assert h.end().type == "turn_interrupted"
        assert h.channel.answers(stop) == ["op_applied"]

    asyncio.run(main())


def test_after_a_crash_it_is_not_run_twice():
    async def main():
        command = Command("deploy", hangs=True)
        h = AgentHarness(commands=[command])
        h.submit(RunUserShellCommand(command="deploy"))
        task = h.start()
        await command.started.wait()
        h.channel.lose_lease()
        await asyncio.gather(task, return_exceptions=True)
        h.next_owner()
        await h.run()
        h.channel.assert_clean()
        assert h.end().error.code == "interrupted"
        assert len(h.box.requests) == 1

    asyncio.run(main())


def test_a_box_that_can_not_be_had_ends_it_with_the_reason():
    h = AgentHarness(commands=[Command("ls", error="no such program: bash")])
    run(h, RunUserShellCommand(command="ls"))
    assert "no such program" in h.end().error.message


# --- commands that outlive an interrupted turn


async def interrupted_with_a_server(h, *, keep):
    h.submit()
    task = h.start()
    held = h.held
    await held.reached.wait()
    stop = h.submit(Interrupt(keep_background=keep))
    await h.until(lambda: h.of_type("turn_interrupted"))
    return task, stop


def server(**more):
    held = hold()
    h = AgentHarness(
        [response(shell("serve", "c1", yield_time_ms=250)), [held], *more.pop("then", ())],
        commands=[Command("serve", b"listening\n", hangs=True)],
        **more,
    )
    h.held = held
    return h


def test_an_interrupt_may_leave_sessions_running_until_they_are_cleaned_up():
    async def main():
        h = server()
        task, stop = await interrupted_with_a_server(h, keep=True)
        assert h.channel.answers(stop) == ["op_applied"]
        assert h.channel.kept
        await settle()
        assert not task.done()
        assert h.box.processes[0].killed_with is None
        (item,) = [e.item for e in h.of_type("item_completed") if e.item.type == "command_execution"]
        assert (item.status, item.aggregated_output) == ("interrupted", "listening\n")
        assert str(item.process_id) in h.model.outputs()["c1"]
        clean = h.submit(CleanBackgroundTerminals())
        assert await task is SessionOutcome.IDLE
        assert h.channel.answers(clean) == ["op_applied"]
        h.assert_done()

    asyncio.run(main())


def test_a_later_turn_still_reaches_them():
    async def main():
        h = server(clock=FakeClock(auto=False))
        task = asyncio.create_task(interrupted_with_a_server(h, keep=True))
        await h.clock.advance(1)
        running, _ = await task
        number = int(h.model.outputs()["c1"].split("session ID ")[1].split("\n")[0])
        h.model._steps += [response(call("write_stdin", "c2", session_id=number, chars="")), says("ok")]
        h.submit()
        await h.clock.advance(6)
        assert "Process running" in h.model.outputs()["c2"]
        assert h.end().type == "turn_completed"
        assert h.box.processes[0].killed_with is None
        await h.clock.advance(600)
        assert await running is SessionOutcome.IDLE
        assert h.box.processes[0].killed_with == 9
        h.assert_done()

    asyncio.run(main())


def test_without_the_option_everything_is_killed():
    async def main():
        h = server()
        task, _ = await interrupted_with_a_server(h, keep=False)
        await task
        h.assert_done()
        assert not h.channel.kept
        assert h.box.processes[0].killed_with == 9

    asyncio.run(main())


def test_shutdown_kills_what_was_left_running():
    async def main():
        h = server()
        task, _ = await interrupted_with_a_server(h, keep=True)
        h.submit(Shutdown())
        assert await task is SessionOutcome.CLOSED
        h.assert_done()

    asyncio.run(main())
