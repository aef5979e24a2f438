"""Tool hooks around patches that are no call of the tool: those of the box's program, and those found in a command."""

import asyncio
import json

from patchyard.agent.ports import PatchCall
from patchyard.protocol.ops import Interrupt
from patchyard.protocol.tasks import HookEvent, HookSpec
from patchyard.testing.builders import response, says, shell, spec
from patchyard.testing.harness import AgentHarness
from patchyard.testing.scripted_sandbox import Command

SCRIPT = "mkdir x; cd x && apply_patch < ../p"
PATCH = "*** Begin Patch\n*** Update File: a.py\n@@\n-x = 1\n+x = 2\n*** End Patch\n"
FILES = {"/workspace/a.py": b"x = 1\n"}


def harness(*hooks: Command, script: str = SCRIPT, patches: int = 1, steps=None, **events: str):
    commands = [] if script != SCRIPT else [Command(script, patches=(PatchCall("/workspace", PATCH.encode()),) * patches)]
    named = {HookEvent(event): (HookSpec(matcher="apply_patch", command=command),) for event, command in events.items()}
    steps = steps or [response(shell(script, "c1")), says("ok")]
    return AgentHarness(steps, commands=[*commands, *hooks], files=FILES, spec=spec(hooks=named))


def run(h):
    async def main():
        h.submit()
        await h.run()
        h.assert_done()

    asyncio.run(main())


def specific(event, **fields):
    return json.dumps({"hookSpecificOutput": {"hookEventName": event, **fields}}).encode()


def process(h, script):
    (found,) = [p for p in h.box.processes if p.command.script == script]
    return found


def reply(h):
    (found,) = process(h, SCRIPT).replies
    return found


def test_hooks_see_a_programs_patch_as_they_see_the_tools():
    h = harness(Command("before"), Command("after"), PreToolUse="before", PostToolUse="after")
    run(h)
    before, after = (json.loads(process(h, name).stdin) for name in ("before", "after"))
    told = {"tool_name": "apply_patch", "tool_input": {"command": PATCH}, "tool_use_id": "c1_patch_1"}
    assert before | told == before
    assert after | told == after
    assert (before["hook_event_name"], after["hook_event_name"]) == ("PreToolUse", "PostToolUse")
    assert after["tool_response"] == "Success. Updated the following files:\nM a.py\n"
    assert (reply(h).code, h.box.files["/workspace/a.py"]) == (0, b"x = 2\n")


def test_a_refusal_is_exit_code_1_with_the_reason_and_nothing_is_changed():
    h = harness(Command("guard", code=2, stderr=b"frozen file"), PreToolUse="guard")
    run(h)
    assert (reply(h).code, reply(h).stdout) == (1, "")
    assert reply(h).stderr == "Command blocked by PreToolUse hook: frozen file. Nothing was changed.\n"
    assert "frozen file" in h.model.outputs()["c1"]
    assert (h.box.files, h.box.applied) == (FILES, [])
    assert [(e.outcome, e.message) for e in h.of_type("hook_completed")] == [("blocked", "frozen file")]


def test_a_hook_changes_a_programs_patch_and_may_not_make_it_none():
    other = PATCH.replace("x = 2", "x = 3")
    h = harness(Command("guard", specific("PreToolUse", updatedInput={"command": other})), PreToolUse="guard")
    run(h)
    assert h.box.files["/workspace/a.py"] == b"x = 3\n"
    h = harness(Command("guard", specific("PreToolUse", updatedInput={"patch": other})), PreToolUse="guard")
    run(h)
    assert (reply(h).code, h.box.files) == (1, FILES)


def test_what_a_hook_says_afterwards_stands_where_the_report_would():
    out = json.dumps({"decision": "block", "reason": "run the linter"}).encode()
    h = harness(Command("review", out), PostToolUse="review")
    run(h)
    assert (reply(h).code, reply(h).stdout) == (0, "run the linter\n")
    assert h.box.files["/workspace/a.py"] == b"x = 2\n"


def test_context_follows_the_output_of_the_command():
    h = harness(Command("note", specific("PreToolUse", additionalContext="a.py is old")), PreToolUse="note")
    run(h)
    last = h.model.requests[1].input
    assert [i.type for i in last[-2:]] == ["function_call_output", "message"]
    assert last[-1].content[0].text == "a.py is old"


def test_a_hook_may_end_the_turn_after_a_programs_patch():
    out = json.dumps({"continue": False, "stopReason": "enough"}).encode()
    h = harness(Command("review", out), steps=[response(shell(SCRIPT, "c1"))], PostToolUse="review")
    run(h)
    assert h.end().error.code == "hook_blocked"
    assert "enough" in h.end().error.message


def test_a_hook_that_applies_a_patch_itself_is_refused_and_starts_no_other_hook():
    inner = (PatchCall("/workspace", PATCH.encode()),)
    h = harness(Command("fixes", patches=inner), PreToolUse="fixes")
    run(h)
    (refused,) = process(h, "fixes").replies
    assert refused.code == 1
    assert [(e.event, e.outcome) for e in h.of_type("hook_completed")] == [("PreToolUse", "failed")]
    assert (reply(h).code, h.box.files["/workspace/a.py"]) == (0, b"x = 2\n")


def test_an_interrupt_ends_the_hook_and_the_command():
    async def main():
        guard = Command("guard", hangs=True)
        h = harness(guard, PreToolUse="guard")
        h.submit()
        task = h.start()
        await guard.started.wait()
        h.submit(Interrupt())
        await task
        assert h.end().type == "turn_interrupted"
        assert [e.outcome for e in h.of_type("hook_completed")] == ["failed"]
        assert (process(h, "guard").killed_with, h.box.files) == (9, FILES)
        h.channel.assert_clean()

    asyncio.run(main())


def test_a_patch_found_in_a_command_meets_the_hooks_of_both_tools():
    script = f"apply_patch <<'EOF'\n{PATCH}EOF\n"
    h = harness(Command("guard", code=2, stderr=b"frozen file"), script=script, PreToolUse="guard")
    run(h)
    assert h.model.outputs()["c1"] == "Command blocked by PreToolUse hook: frozen file. Nothing was changed."
    assert (json.loads(process(h, "guard").stdin)["tool_name"], h.box.files) == ("apply_patch", FILES)
