import asyncio
import re

from patchyard.agent.tools.exec_command import ExecCommand
from patchyard.protocol.policies import DangerFullAccess, ReadOnly, WorkspaceWrite
from patchyard.testing.builders import call, completed, done, patch_call, raw_call, response, says, shell, spec
from patchyard.testing.harness import AgentHarness
from patchyard.testing.scripted_model import Pause
from patchyard.testing.scripted_sandbox import Command


def run(h):
    async def main():
        h.submit()
        await h.run()
        h.assert_done()

    asyncio.run(main())


def items(h, kind):
    return [e.item for e in h.of_type("item_completed") if e.item.type == kind]


def test_the_output_has_the_documented_shape():
    h = AgentHarness([response(shell("make", "c1")), says("ok")], commands=[Command("make", b"built\n", seconds=1.5)])
    run(h)
    assert re.fullmatch(
        r"Chunk ID: [0-9a-f]{6}\nWall time: 1\.5000 seconds\nProcess exited with code 0\n"
        r"Original token count: 2\nOutput:\nbuilt\n",
        h.model.outputs()["c1"],
    )


def test_a_failed_command_is_an_item_that_failed():
    h = AgentHarness([response(shell("false", "c1")), says("ok")], commands=[Command("false", code=1)])
    run(h)
    (item,) = items(h, "command_execution")
    assert (item.id, item.command, item.status, item.exit_code) == ("c1", "false", "failed", 1)
    assert "Process exited with code 1" in h.model.outputs()["c1"]


def test_commands_run_side_by_side_and_answer_in_the_order_of_the_calls():
    h = AgentHarness(
        [response(shell("slow", "c1"), shell("fast", "c2")), says("ok")],
        commands=[Command("slow", b"s", seconds=2), Command("fast", b"f", seconds=1)],
    )
    run(h)
    outputs = [i.call_id for i in h.model.requests[1].input if i.type == "function_call_output"]
    assert outputs == ["c1", "c2"]
    assert h.clock.monotonic() < 2.9
    assert [i.id for i in items(h, "command_execution")] == ["c2", "c1"]


def test_a_command_starts_while_the_stream_still_runs():
    async def main():
        command = Command("ls")
        h = AgentHarness([[*done(shell("ls", "c1")), Pause(60), completed()], says("ok")], commands=[command])
        h.submit()
        task = h.start()
        await command.started.wait()
        assert h.of_type("token_count") == []
        await task
        h.assert_done()

    asyncio.run(main())


PATCH = "*** Begin Patch\n*** Update File: a.py\n@@\n-x = 1\n+x = 2\n*** End Patch"


def test_a_patch_is_a_barrier_both_ways():
    h = AgentHarness(
        [response(shell("before", "c1"), patch_call(PATCH, "c2"), shell("after", "c3")), says("ok")],
        commands=[Command("before", seconds=3), Command("after")],
        files={"/workspace/a.py": b"x = 1\n"},
    )
    run(h)
    order = [e.item.id for e in h.of_type("item_started", "item_completed") if e.item.id in ("c1", "c2", "c3")]
    assert order == ["c1", "c1", "c2", "c2", "c3", "c3"]


def test_a_patch_changes_the_files_and_reports():
    h = AgentHarness([response(patch_call(PATCH, "c1")), says("ok")], files={"/workspace/a.py": b"x = 1\n"})
    run(h)
    assert h.box.files["/workspace/a.py"] == b"x = 2\n"
    text = h.model.outputs()["c1"]
    assert text.startswith("Exit code: 0\nWall time: 0.0 seconds\nOutput:\nSuccess. Updated the following files:\nM a.py")
    (item,) = items(h, "file_change")
    assert (item.status, item.changes[0].path, item.changes[0].kind) == ("completed", "a.py", "update")
    assert h.gate.ended[0].changed_files


def test_a_patch_that_does_not_fit_changes_nothing_and_says_why():
    h = AgentHarness([response(patch_call(PATCH, "c1")), says("ok")], files={"/workspace/a.py": b"y = 1\n"})
    run(h)
    assert h.box.applied == []
    assert h.model.outputs()["c1"].startswith("The patch was not applied. ")
    (item,) = items(h, "file_change")
    assert (item.id, item.status, item.error) == ("c1", "failed", h.model.outputs()["c1"])
    (change,) = item.changes
    assert (change.path, change.kind, change.diff) == ("a.py", "update", "@@\n-x = 1\n+x = 2\n")
    order = [e.type for e in h.of_type("item_started", "item_completed") if e.item.type == "file_change"]
    assert order == ["item_started", "item_completed"]


def test_a_patch_that_is_none():
    h = AgentHarness([response(patch_call("hello", "c1")), says("ok")])
    run(h)
    assert "*** Begin Patch" in h.model.outputs()["c1"]
    (item,) = items(h, "file_change")
    assert (item.status, item.changes, item.error) == ("failed", (), h.model.outputs()["c1"])


def test_the_function_form_of_apply_patch():
    h = AgentHarness(
        [response(call("apply_patch", "c1", input=PATCH)), says("ok")],
        files={"/workspace/a.py": b"x = 1\n"},
        freeform_patch=False,
    )
    run(h)
    assert h.box.files["/workspace/a.py"] == b"x = 2\n"
    (tool,) = [t for t in h.model.requests[0].tools if t["name"] == "apply_patch"]
    assert tool["type"] == "function"


def test_a_function_call_of_the_freeform_tool_is_understood():
    h = AgentHarness([response(call("apply_patch", "c1", input=PATCH)), says("ok")], files={"/workspace/a.py": b"x = 1\n"})
    run(h)
    assert h.model.outputs()["c1"].startswith("Exit code: 0")


def test_a_patch_inside_a_command_is_applied_without_a_shell():
    script = f"cd sub && apply_patch <<'EOF'\n{PATCH}\nEOF\n"
    h = AgentHarness([response(shell(script, "c1")), says("ok")], files={"/workspace/sub/a.py": b"x = 1\n"})
    run(h)
    assert h.box.requests == []
    assert h.box.files["/workspace/sub/a.py"] == b"x = 2\n"
    assert items(h, "file_change")[0].id == "c1"


def test_files_that_can_not_be_written_are_told():
    h = AgentHarness([response(patch_call(PATCH, "c1")), says("ok")], files={"/workspace/a.py": b"x = 1\n"})
    h.box.refuse_files = "No space is left."
    run(h)
    assert "No space is left." in h.model.outputs()["c1"]
    assert items(h, "file_change")[0].status == "failed"


def test_what_was_asked_is_what_runs():
    h = AgentHarness([response(shell("ls", "c1", workdir="src", login=True)), says("ok")], commands=[Command("ls")])
    run(h)
    (request,) = h.box.requests
    assert request.argv == ("bash", "-lc", "ls")
    assert request.cwd == "/workspace/src"
    assert request.policy == WorkspaceWrite()
    assert request.limits.wall_time_s == 600
    assert "PATH" not in request.env
    assert {
        "TERM": "dumb",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "LANG": "C.UTF-8",
        "NO_COLOR": "1",
    }.items() <= request.env.items()
    assert request.env["PATCHYARD_SANDBOX_NETWORK_DISABLED"] == "1"


def test_the_shell_keeps_the_path_of_the_image_by_default():
    h = AgentHarness([response(shell("ls", "c1")), says("ok")], commands=[Command("ls")])
    run(h)
    assert h.box.requests[0].argv == ("bash", "-c", "ls")
    assert h.box.processes[0].stdin_closed


def test_a_long_command_becomes_a_session_and_ends_later():
    h = AgentHarness(
        [response(shell("serve", "c1", yield_time_ms=1000)), None, says("ok")],
        commands=[Command("serve", b"up\n", seconds=4, later=b"bye\n")],
    )

    async def main():
        h.submit()
        # The session id is only known when the first output is there, so the second response is written then.
        real = h.model.stream

        def stream(request):
            if h.model._steps[0] is None:
                session = int(re.search(r"session ID (\d+)", h.model.outputs_of(request)["c1"])[1])
                h.model._steps[0] = response(call("write_stdin", "c2", session_id=session))
            return real(request)

        h.model.stream = stream
        await h.run()
        h.assert_done()

    h.model.outputs_of = lambda request: {i.call_id: i.output for i in request.input if i.type == "function_call_output"}
    asyncio.run(main())
    first, second = h.model.outputs()["c1"], h.model.outputs()["c2"]
    assert "Process running with session ID" in first
    assert first.endswith("Output:\nup\n")
    assert "Process exited with code 0" in second
    assert second.endswith("Output:\nbye\n")
    (item,) = items(h, "command_execution")
    assert item.aggregated_output == "up\nbye\n"
    assert item.duration_ms == 4000


def test_a_command_that_nobody_waits_for_ends_with_its_turn():
    h = AgentHarness([response(shell("serve", "c1", yield_time_ms=250)), says("ok")], commands=[Command("serve", hangs=True)])
    run(h)
    assert h.box.processes[0].killed_with == 9
    assert items(h, "command_execution")[0].status == "interrupted"


def test_an_unknown_session_is_told_in_plain_words():
    h = AgentHarness([response(call("write_stdin", "c1", session_id=4711)), says("ok")])
    run(h)
    assert h.model.outputs()["c1"] == "There is no running command with session ID 4711: it has ended, or never ran."


def test_a_time_limit_of_a_command_is_told():
    h = AgentHarness([response(shell("loop", "c1")), says("ok")], commands=[Command("loop", code=137, timed_out=True)])
    run(h)
    assert "stopped after 600 seconds" in h.model.outputs()["c1"]


def test_a_command_that_can_not_start_is_told():
    h = AgentHarness([response(shell("x", "c1")), says("ok")], commands=[Command("x", error="No such directory: /nowhere")])
    run(h)
    assert h.model.outputs()["c1"] == "No such directory: /nowhere"
    assert items(h, "command_execution")[0].status == "failed"


def test_at_most_so_many_commands_run_at_once():
    h = AgentHarness(
        [response(shell("a", "c1", yield_time_ms=250)), response(shell("b", "c2")), says("ok")],
        commands=[Command("a", hangs=True)],
        sessions_limit=1,
    )
    run(h)
    assert "1 commands run already" in h.model.outputs()["c2"]


def test_live_output_keeps_colours_and_the_model_sees_plain_text():
    h = AgentHarness([response(shell("t", "c1")), says("ok")], commands=[Command("t", b"\x1b[31mred\x1b[0m\x00 \xff\r\n")])
    run(h)
    assert h.model.outputs()["c1"].endswith("Output:\nred \ufffd\n")
    live = "".join(m.delta for m in h.channel.shown if m.type == "exec_output_delta")
    assert live == "\x1b[31mred\x1b[0m \ufffd\r\n"


def test_long_output_is_cut_in_the_middle_at_line_borders():
    data = b"".join(b"line %05d\n" % i for i in range(20_000))
    h = AgentHarness([response(shell("t", "c1", max_output_tokens=100)), says("ok")], commands=[Command("t", data)])
    run(h)
    text = h.model.outputs()["c1"].partition("Output:\n")[2]
    assert text.startswith("line 00000\n")
    assert text.endswith("line 19999\n")
    assert re.search(r"\n\[… \d+ tokens \(\d+ lines\) left out of \d+ lines …\]\nline ", text)
    assert len(text) < 500
    assert "Original token count: 55000" in h.model.outputs()["c1"]


def test_asking_for_more_than_the_limit_does_not_help():
    h = AgentHarness([response(shell("t", "c1", max_output_tokens=10**6)), says("ok")], commands=[Command("t", b"x" * 900_000)])
    run(h)
    assert len(h.model.outputs()["c1"]) < 41_000


def test_escalation_is_refused_where_nobody_can_be_asked():
    h = AgentHarness(
        [response(shell("apt install x", "c1", sandbox_permissions="require_escalated", justification="May I?")), says("ok")],
        spec=spec(approval="never"),
    )
    run(h)
    assert h.model.outputs()["c1"].startswith("Refused: ")
    assert items(h, "command_execution")[0].status == "declined"


def test_a_forced_rm_is_refused_where_nobody_can_be_asked():
    h = AgentHarness(
        [response(shell("cd /tmp; rm -rf x", "c1")), says("ok")], spec=spec(approval="never", sandbox=DangerFullAccess())
    )
    run(h)
    assert "`rm` with a force option" in h.model.outputs()["c1"]


def test_a_patch_in_a_read_only_sandbox_is_refused():
    h = AgentHarness(
        [response(patch_call(PATCH, "c1")), says("ok")],
        files={"/workspace/a.py": b"x = 1\n"},
        spec=spec(approval="never", sandbox=ReadOnly()),
    )
    run(h)
    assert h.model.outputs()["c1"].startswith("Refused: the sandbox is read-only")
    assert h.box.applied == []
    assert items(h, "file_change")[0].status == "declined"


def test_a_patch_below_git_is_refused():
    text = "*** Begin Patch\n*** Add File: .git/hooks/pre-commit\n+evil\n*** End Patch"
    h = AgentHarness([response(patch_call(text, "c1")), says("ok")], spec=spec(approval="never"))
    run(h)
    assert "protected name" in h.model.outputs()["c1"]


def test_a_patch_outside_the_workspace_is_refused():
    text = "*** Begin Patch\n*** Add File: ../etc/x\n+evil\n*** End Patch"
    h = AgentHarness([response(patch_call(text, "c1")), says("ok")], spec=spec(approval="never"))
    run(h)
    assert "outside the workspace" in h.model.outputs()["c1"]
    assert h.box.applied == []


def test_unknown_arguments_do_not_matter():
    h = AgentHarness(
        [response(raw_call("exec_command", '{"cmd": "ls", "because": 1}', "c1")), says("ok")], commands=[Command("ls")]
    )
    run(h)


def test_the_specification_of_exec_command_is_stable():
    h = AgentHarness()
    spec_ = ExecCommand(h.session._thread, None).spec()
    assert spec_["parameters"]["required"] == ["cmd"]
    assert list(spec_["parameters"]["properties"]) == [
        "cmd",
        "workdir",
        "shell",
        "login",
        "tty",
        "yield_time_ms",
        "max_output_tokens",
        "sandbox_permissions",
        "justification",
        "prefix_rule",
    ]
