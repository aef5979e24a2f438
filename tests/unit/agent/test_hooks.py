import asyncio
import json
import subprocess

import pytest

from patchyard.agent.hooks import SPLIT_SCRIPT
from patchyard.agent.session import SessionOutcome
from patchyard.protocol.ops import ApprovalDecision, ExecApproval, Interrupt
from patchyard.protocol.tasks import HookEvent, HookSpec
from patchyard.testing.builders import call, patch_call, raw_call, response, says, shell, spec, turn_input
from patchyard.testing.harness import AgentHarness
from patchyard.testing.scripted_model import Hold
from patchyard.testing.scripted_sandbox import Command


def hooks(**named):
    """hooks(Stop="check") or hooks(PreToolUse=("exec_command", "check"))"""
    made = {}
    for event, value in named.items():
        matcher, command = value if isinstance(value, tuple) else (None, value)
        made[HookEvent(event)] = (HookSpec(matcher=matcher, command=command),)
    return made


def harness(steps, commands, *, hooks=None, fields=None, **more):
    return AgentHarness(steps, commands=commands, spec=spec(hooks=hooks or {}, **(fields or {})), **more)


def run(h):
    async def main():
        h.submit()
        await h.run()
        h.assert_done()

    asyncio.run(main())


def answer(**fields):
    return json.dumps(fields).encode()


def specific(event, **fields):
    return answer(hookSpecificOutput={"hookEventName": event, **fields})


def stdin_of(h, command):
    (process,) = [p for p in h.box.processes if p.command.script == command]
    assert process.request.argv[:3] == ("bash", "-c", SPLIT_SCRIPT)
    assert process.stdin_closed
    return json.loads(process.stdin)


def outcomes(h):
    return [(e.event, e.outcome) for e in h.of_type("hook_completed")]


def texts(request, role):
    return [part.text for i in request.input if i.type == "message" and i.role == role for part in i.content]


def test_without_hooks_nothing_waits_for_a_box():
    h = AgentHarness([says("ok")])
    run(h)
    assert h.source.asked == 0
    assert h.of_type("hook_started") == []


# --- SessionStart and UserPromptSubmit


def test_session_start_adds_context_before_the_prompt():
    h = harness([says("ok")], [Command("hi", b"Use tabs.\n")], hooks=hooks(SessionStart="hi"))
    run(h)
    items = [i for i in h.model.requests[0].input if i.type == "message"]
    assert [i.content[0].text for i in items[-2:]] == ["Use tabs.", "Fix the bug."]
    assert items[-2].role == "developer"
    sent = stdin_of(h, "hi")
    assert sent == {
        "session_id": h.channel.thread_id,
        "transcript_path": None,
        "cwd": "/workspace",
        "hook_event_name": "SessionStart",
        "model": "model-x",
        "permission_mode": "default",
        "source": "startup",
    }
    assert outcomes(h) == [("SessionStart", "ok")]


def test_session_start_knows_a_thread_that_goes_on():
    async def main():
        h = harness([says("ok")], [Command("hi")], hooks=hooks(SessionStart="hi"))
        h.submit()
        await h.run()
        h.next_owner()
        h.model._steps.append(says("more"))
        h.box._expected.append(Command("hi"))
        h.submit()
        await h.run()
        h.assert_done()
        sources = [json.loads(p.stdin)["source"] for p in h.box.processes]
        assert sources == ["startup", "resume"]

    asyncio.run(main())


def test_session_start_may_stop_the_turn():
    out = answer(**{"continue": False, "stopReason": "wrong branch"})
    h = harness([], [Command("hi", out)], hooks=hooks(SessionStart="hi"))
    run(h)
    end = h.end()
    assert (end.type, end.error.code) == ("turn_failed", "hook_blocked")
    assert "wrong branch" in end.error.message


def test_a_prompt_that_is_refused_is_seen_by_people_but_never_by_a_model():
    h = harness([], [Command("check", code=2, stderr=b"no secrets please")], hooks=hooks(UserPromptSubmit="check"))
    run(h)
    assert h.end().error.code == "hook_blocked"
    assert "no secrets please" in h.end().error.message
    assert [e.item.type for e in h.of_type("item_completed")] == ["user_message"]
    assert "Fix the bug." not in str(h.channel.restored().history)
    assert stdin_of(h, "check")["prompt"] == "Fix the bug."
    assert outcomes(h) == [("UserPromptSubmit", "blocked")]


def test_context_for_a_prompt_comes_after_it():
    out = specific("UserPromptSubmit", additionalContext="Today is Monday.")
    h = harness([says("ok")], [Command("check", out)], hooks=hooks(UserPromptSubmit="check"))
    run(h)
    assert h.model.requests[0].input[-1].content[0].text == "Today is Monday."
    assert h.model.requests[0].input[-1].role == "developer"


def test_a_steer_passes_the_hook_and_is_answered_once_when_it_is_refused():
    async def main():
        held = Hold(asyncio.Event(), asyncio.Event())
        h = harness(
            [[held, *says("ok")]],
            [Command("check"), Command("check", code=2, stderr=b"not now")],
            hooks=hooks(UserPromptSubmit="check"),
        )
        h.submit()
        task = h.start()
        await held.reached.wait()
        steer = h.submit(turn_input("do more"))
        held.until.set()
        await task
        h.assert_done()
        assert h.channel.answers(steer) == ["op_rejected"]
        assert h.end().type == "turn_completed"

    asyncio.run(main())


# --- tools


def test_a_refused_command_does_not_run():
    h = harness(
        [response(shell("git push", "c1")), says("ok")],
        [Command("guard", code=2, stderr=b"pushing is not yours")],
        hooks=hooks(PreToolUse=("exec_command|apply_patch", "guard")),
    )
    run(h)
    assert h.model.outputs()["c1"] == "Command blocked by PreToolUse hook: pushing is not yours. Command: git push"
    sent = stdin_of(h, "guard")
    assert (sent["tool_name"], sent["tool_input"], sent["tool_use_id"]) == ("Bash", {"command": "git push"}, "c1")
    assert sent["turn_id"]


def test_a_denied_permission_decision_is_a_refusal():
    out = specific("PreToolUse", permissionDecision="deny", permissionDecisionReason="no")
    h = harness([response(shell("ls", "c1")), says("ok")], [Command("guard", out)], hooks=hooks(PreToolUse="guard"))
    run(h)
    assert h.model.outputs()["c1"].startswith("Command blocked by PreToolUse hook: no.")


def test_other_tools_are_not_looked_at():
    h = harness(
        [response(call("update_plan", "c1", plan=[])), says("ok")], [], hooks=hooks(PreToolUse=("exec_command", "guard"))
    )
    run(h)
    assert h.model.outputs()["c1"] == "Plan updated"


def test_a_hook_changes_a_command():
    out = specific("PreToolUse", permissionDecision="allow", updatedInput={"command": "ls -a"}, additionalContext="I added -a.")
    h = harness(
        [response(shell("ls", "c1")), says("ok")],
        [Command("guard", out), Command("ls -a", b".git")],
        hooks=hooks(PreToolUse="guard"),
    )
    run(h)
    last = h.model.requests[1].input
    assert [i.type for i in last[-2:]] == ["function_call_output", "message"]
    assert last[-1].content[0].text == "I added -a."
    assert [e.item.command for e in h.of_type("item_started") if e.item.type == "command_execution"] == ["ls -a"]


def test_a_hook_changes_a_patch():
    old, new = ("*** Begin Patch\n*** Add File: a.py\n+" + text + "\n*** End Patch" for text in ("x", "y"))
    out = specific("PreToolUse", updatedInput={"command": new})
    h = harness([response(patch_call(old, "c1")), says("ok")], [Command("guard", out)], hooks=hooks(PreToolUse="guard"))
    run(h)
    assert h.box.files["/workspace/a.py"] == b"y\n"


def test_the_reason_of_a_post_hook_replaces_the_output():
    h = harness(
        [response(shell("make", "c1")), says("ok")],
        [Command("make", b"secret stuff"), Command("review", answer(decision="block", reason="run make lint too"))],
        hooks=hooks(PostToolUse="review"),
    )
    run(h)
    assert h.model.outputs()["c1"] == "run make lint too"
    assert "secret stuff" in stdin_of(h, "review")["tool_response"]


def test_a_post_hook_may_end_the_turn():
    out = answer(**{"continue": False, "stopReason": "enough"})
    h = harness([response(shell("make", "c1"))], [Command("make"), Command("review", out)], hooks=hooks(PostToolUse="review"))
    run(h)
    assert h.end().error.code == "hook_blocked"


# --- failures


@pytest.mark.parametrize(
    ("command", "outcome", "says_"),
    [
        (Command("h", code=1, stderr=b"boom"), "failed", "exit code 1. boom"),
        (Command("h", code=2), "failed", "the reason is missing"),
        (Command("h", b"{not json"), "failed", "can't be used"),
        (Command("h", answer(suppressOutput=True)), "failed", "suppressOutput"),
        (Command("h", answer(**{"continue": False})), "failed", "not offered"),
        (Command("h", specific("PreToolUse", permissionDecision="ask")), "failed", "permissionDecision"),
        (Command("h", specific("Stop")), "failed", "hookEventName"),
        (Command("h", error="no such program"), "failed", "no such program"),
        (Command("h", hangs=True), "timed_out", "60 seconds"),
    ],
)
def test_a_hook_that_fails_is_seen_and_the_turn_goes_on(command, outcome, says_):
    h = harness([response(shell("ls", "c1")), says("ok")], [command, Command("ls", b"a.py")], hooks=hooks(PreToolUse="h"))
    run(h)
    (done,) = h.of_type("hook_completed")
    assert done.outcome == outcome
    assert says_ in done.message
    assert h.model.outputs()["c1"].endswith("a.py")
    assert h.end().type == "turn_completed"


def test_a_message_for_people_is_a_warning():
    h = harness([says("ok")], [Command("h", answer(systemMessage="quota is low"))], hooks=hooks(UserPromptSubmit="h"))
    run(h)
    assert [e.message for e in h.of_type("warning")] == ["UserPromptSubmit hook: quota is low"]


def test_an_interrupt_ends_a_hook():
    async def main():
        command = Command("h", hangs=True)
        h = harness([response(shell("ls", "c1"))], [command], hooks=hooks(PreToolUse="h"))
        h.submit()
        task = h.start()
        await command.started.wait()
        stop = h.submit(Interrupt())
        await task
        assert h.end().type == "turn_interrupted"
        assert h.channel.answers(stop) == ["op_applied"]
        assert outcomes(h) == [("PreToolUse", "failed")]
        assert h.box.processes[0].killed_with == 9

    asyncio.run(main())


# --- PermissionRequest

RM = "rm -rf build"


def permission(command, **more):
    steps = [response(shell(RM, "c1")), says("ok")]
    return harness(steps, [command, *([Command(RM)] if more.pop("runs", False) else [])], hooks=hooks(PermissionRequest="ask"))


def test_a_hook_answers_in_a_persons_place():
    h = permission(Command("ask", specific("PermissionRequest", decision={"behavior": "allow"})), runs=True)
    run(h)
    assert h.of_type("exec_approval_request") == []
    assert stdin_of(h, "ask")["tool_input"]["command"] == RM


@pytest.mark.parametrize(
    "command",
    [
        Command("ask", specific("PermissionRequest", decision={"behavior": "deny", "message": "never"})),
        Command("ask", code=2, stderr=b"never"),
        Command("ask", specific("PermissionRequest", decision={"behavior": "allow", "interrupt": True}) or b"never"),
        Command("ask", code=1, stderr=b"never"),
        Command("ask", hangs=True),
    ],
)
def test_a_hook_that_says_no_or_fails_is_a_no(command):
    h = permission(command)
    run(h)
    assert h.model.outputs()["c1"].startswith("A PermissionRequest hook refused this")
    assert h.of_type("exec_approval_request") == []
    (item,) = [e.item for e in h.of_type("item_completed") if e.item.type == "command_execution"]
    assert item.status == "declined"


def test_without_an_opinion_a_person_is_asked_and_after_a_park_not_the_hook_again():
    async def main():
        h = harness(
            [response(shell(RM, "c1")), says("ok")], [Command("ask"), Command(RM)], hooks=hooks(PermissionRequest="ask")
        )
        h.submit()
        assert await h.run() is SessionOutcome.PARKED
        (question,) = h.of_type("exec_approval_request")
        h.next_owner()
        h.submit(ExecApproval(approval_id=question.approval_id, decision=ApprovalDecision.ACCEPT))
        await h.run()
        h.assert_done()

    asyncio.run(main())


def test_an_approval_is_never_used_for_another_command():
    """A hook that changes the command differently after a park must not run under the old answer."""

    async def main():
        def guard(command):
            return Command("guard", specific("PreToolUse", updatedInput={"command": command}))

        h = harness(
            [response(shell("x", "c1")), says("ok")], [guard("rm -rf a"), guard("rm -rf b")], hooks=hooks(PreToolUse="guard")
        )
        h.submit()
        assert await h.run() is SessionOutcome.PARKED
        (first,) = h.of_type("exec_approval_request")
        h.next_owner()
        h.submit(ExecApproval(approval_id=first.approval_id, decision=ApprovalDecision.ACCEPT))
        assert await h.run() is SessionOutcome.PARKED
        asked = h.of_type("exec_approval_request")
        assert [q.command[-1] for q in asked] == ["rm -rf a", "rm -rf b"]
        assert h.box.requests[-1].argv[-1] == "guard"

    asyncio.run(main())


# --- Stop and compaction


def test_a_stop_hook_asks_for_another_round():
    h = harness(
        [says("done"), says("really done")],
        [Command("check", code=2, stderr=b"run the tests"), Command("check")],
        hooks=hooks(Stop="check"),
    )
    run(h)
    last = h.model.requests[1].input[-1]
    assert last.role == "user"
    assert last.content[0].text.startswith('<hook_prompt hook_run_id="')
    assert last.content[0].text.endswith('">run the tests</hook_prompt>')
    sent = [json.loads(p.stdin) for p in h.box.processes]
    assert [(s["stop_hook_active"], s["last_assistant_message"]) for s in sent] == [(False, "done"), (True, "really done")]
    assert len(h.gate.asked) == 1


def test_compaction_asks_first_and_starts_the_session_again():
    async def main():
        h = harness(
            [],
            [Command("pre", code=2, stderr=b"not yet"), Command("post"), Command("hi", b"Fresh window.")],
            hooks=hooks(PreCompact=("auto", "pre"), PostCompact="post", SessionStart=("compact", "hi")),
        )
        compaction = h.session._thread.hooks.compaction
        assert await compaction.before("manual") is None
        assert await compaction.before("auto") == "not yet"
        await compaction.after("auto")
        await h.session._journal.flush()
        assert h.session._thread.history.items[-1].content[0].text == "Fresh window."
        assert stdin_of(h, "post")["trigger"] == "auto"

    asyncio.run(main())


# --- where they come from

TOML = b"""
[[hooks.Stop]]
command = "from repo"
timeout_s = 5
"""


@pytest.mark.parametrize("trusted", [False, True])
def test_hooks_of_the_repository_need_the_tasks_word(trusted):
    h = AgentHarness(
        [says("ok")],
        commands=[Command("from task"), *([Command("from repo")] if trusted else [])],
        spec=spec(hooks=hooks(Stop="from task"), repository_hooks=trusted),
        source={"base_files": {".patchyard/hooks.toml": TOML}},
    )
    run(h)


@pytest.mark.parametrize(
    "data",
    [
        b"[[hooks.Stop]]\ncommand='x'\nmatcher='((a*)*)*{3}'",
        b"[[hooks.Nothing]]\ncommand='x'",
        b"not toml",
        b"\xff",
        b"[[hooks.Stop]]\ncommand='x'\nmatcher='('",
    ],
)
def test_a_broken_file_is_told_and_not_used(data):
    h = AgentHarness([says("ok")], spec=spec(repository_hooks=True), source={"base_files": {".patchyard/hooks.toml": data}})
    run(h)
    (warning,) = h.of_type("warning")
    assert warning.message.startswith("The hooks of .patchyard/hooks.toml are not used")


def of_tenant(**named):
    return {"tenant_hooks": hooks(**named)}


def test_the_tenants_come_first_then_the_tasks_then_the_repositorys():
    h = AgentHarness(
        [says("ok")],
        commands=[Command("from tenant"), Command("from task"), Command("from repo")],
        spec=spec(hooks=hooks(Stop="from task"), repository_hooks=True),
        source={"base_files": {".patchyard/hooks.toml": TOML}},
        **of_tenant(Stop="from tenant"),
    )
    run(h)
    assert [(e.source, e.command) for e in h.of_type("hook_started")] == [
        ("tenant", "from tenant"),
        ("task", "from task"),
        ("repository", "from repo"),
    ]
    assert {e.source for e in h.of_type("hook_completed")} == {"tenant", "task", "repository"}


def test_a_no_of_the_tenant_wins_over_a_yes_of_the_task():
    yes = specific("PermissionRequest", decision={"behavior": "allow"})
    no = specific("PermissionRequest", decision={"behavior": "deny", "message": "never here"})
    h = harness(
        [response(shell(RM, "c1")), says("ok")],
        [Command("tenant", no), Command("task", yes)],
        hooks=hooks(PermissionRequest="task"),
        **of_tenant(PermissionRequest="tenant"),
    )
    run(h)
    assert "never here" in h.model.outputs()["c1"]
    assert h.of_type("exec_approval_request") == []


def test_the_tenants_hook_is_asked_again_about_what_the_tasks_made_of_a_command():
    """Otherwise a task could ask for something harmless and run something else."""
    changed = specific("PreToolUse", updatedInput={"command": "git push"})
    h = harness(
        [response(shell("git status", "c1")), says("ok")],
        [Command("tenant"), Command("task", changed), Command("tenant", code=2, stderr=b"no pushes")],
        hooks=hooks(PreToolUse="task"),
        **of_tenant(PreToolUse="tenant"),
    )
    run(h)
    assert "blocked by PreToolUse hook: no pushes" in h.model.outputs()["c1"]
    asked = [json.loads(p.stdin)["tool_input"]["command"] for p in h.box.processes if p.command.script == "tenant"]
    assert asked == ["git status", "git push"]


def test_the_tenants_change_of_a_command_wins():
    changes = {name: specific("PreToolUse", updatedInput={"command": f"echo {name}"}) for name in ("tenant", "task")}
    h = harness(
        [response(shell("make", "c1")), says("ok")],
        [Command("tenant", changes["tenant"]), Command("task", changes["task"]), Command("echo tenant", b"done")],
        hooks=hooks(PreToolUse="task"),
        **of_tenant(PreToolUse="tenant"),
    )
    run(h)
    assert "done" in h.model.outputs()["c1"]


@pytest.mark.parametrize(
    "guard", [Command("tenant", code=137), Command("tenant", hangs=True), Command("tenant", error="no room")]
)
def test_a_tenants_guard_that_fails_is_a_no(guard):
    """The commands of the box could make it fail."""
    named = {HookEvent.PRE_TOOL_USE: (HookSpec(command="tenant", timeout_s=5),)}
    h = harness([response(shell("make", "c1")), says("ok")], [guard], tenant_hooks=named)
    run(h)
    assert "a hook of the tenant failed, and so it counts as refused" in h.model.outputs()["c1"]
    assert outcomes(h) == [("PreToolUse", "timed_out" if guard.hangs else "failed")]


def test_much_error_output_does_not_cost_the_reason_of_a_refusal():
    noisy = "head -c 600000 /dev/zero | tr '\\0' x >&2; echo; echo end >&2; exit 2"
    done = subprocess.run(["bash", "-c", SPLIT_SCRIPT, "MARK", noisy], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    out, _, reason = done.stdout.rpartition("\nMARK")
    assert out == "\n"
    assert reason.startswith("xxx")
    assert reason.endswith("xxxend")
    assert len(reason) < 40_000
    short = subprocess.run(["bash", "-c", SPLIT_SCRIPT, "MARK", "echo no >&2"], capture_output=True, text=True, check=True)
    assert short.stdout == "\nMARKno"


@pytest.mark.parametrize("arguments", ['{"cmd": "x", "y": ' + "[" * 5000 + "]" * 5000 + "}", "{broken", "[1]"])
def test_arguments_that_can_not_be_read_are_shown_to_hooks_and_can_be_replaced(arguments):
    changed = specific("PreToolUse", permissionDecision="allow", updatedInput={"command": "echo safe"})
    h = harness(
        [response(raw_call("exec_command", arguments)), says("ok")],
        [Command("guard", output=changed), Command("echo safe", output=b"safe")],
        hooks=hooks(PreToolUse="guard"),
    )
    run(h)
    started = [e.item for e in h.of_type("item_started") if e.item.type == "command_execution"]
    assert [item.command for item in started] == ["echo safe"]
