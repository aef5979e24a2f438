"""The apply_patch program of commands, over the scripted box: one way with the tool, under the command's own policy."""

import asyncio

import pytest

from patchyard.agent.ports import PatchCall, WriteFile
from patchyard.protocol.ops import ApprovalDecision, Interrupt, PatchApproval
from patchyard.protocol.policies import DangerFullAccess, ReadOnly, WorkspaceWrite
from patchyard.testing.builders import response, says, shell, spec
from patchyard.testing.clock import FakeClock, settle
from patchyard.testing.harness import AgentHarness
from patchyard.testing.scripted_sandbox import Command

SCRIPT = "mkdir x; cd x && apply_patch < ../p"
PATCH = b"*** Begin Patch\n*** Update File: a.py\n@@\n-x = 1\n+x = 2\n*** End Patch\n"
FILES = {"/workspace/a.py": b"x = 1\n"}


def adds(path: str) -> bytes:
    return f"*** Begin Patch\n*** Add File: {path}\n+new\n*** End Patch\n".encode()


def harness(*patches: PatchCall, script: str = SCRIPT, command: dict | None = None, **fields):
    step = response(shell(script, "c1"))
    return AgentHarness(
        [step, says("ok")], commands=[Command(script, patches=patches, **(command or {}))], files=FILES, **fields
    )


def run(h):
    async def main():
        h.submit()
        await h.run()
        h.assert_done()

    asyncio.run(main())


def replies(h):
    return h.box.processes[0].replies


def changes(h, event="item_completed"):
    return [e.item for e in h.of_type(event) if e.item.type == "file_change"]


def test_a_patch_is_applied_and_is_an_item_of_the_turn():
    h = harness(PatchCall("/workspace", PATCH))
    run(h)
    assert h.box.files["/workspace/a.py"] == b"x = 2\n"
    (reply,) = replies(h)
    assert (reply.code, reply.stdout, reply.stderr) == (0, "Success. Updated the following files:\nM a.py\n", "")
    assert "M a.py" in h.model.outputs()["c1"]
    (item,) = changes(h)
    assert (item.id, item.status, item.changes[0].path) == ("c1_patch_1", "completed", "a.py")
    order = [(e.type, e.item.id) for e in h.of_type("item_started", "item_completed") if e.item.id.startswith("c1")]
    assert order == [
        ("item_started", "c1"),
        ("item_started", "c1_patch_1"),
        ("item_completed", "c1_patch_1"),
        ("item_completed", "c1"),
    ]
    assert h.gate.ended[0].changed_files


def test_paths_start_at_the_programs_folder_and_each_patch_sees_the_one_before():
    again = PATCH.replace(b"x = 2", b"x = 3").replace(b"x = 1", b"x = 2").replace(b"a.py", b"../a.py")
    h = harness(PatchCall("/workspace", PATCH), PatchCall("/workspace/pkg", again))
    run(h)
    assert h.box.files["/workspace/a.py"] == b"x = 3\n"
    assert [item.id for item in changes(h)] == ["c1_patch_1", "c1_patch_2"]


@pytest.mark.parametrize(
    ("call", "words", "tried"),
    [
        (PatchCall("/workspace", b"nonsense"), "The patch was not applied.", []),
        (PatchCall("/workspace", PATCH.replace(b"x = 1", b"y = 1")), "The patch was not applied.", ["a.py"]),
        (PatchCall("/workspace", b"\xff"), "not UTF-8", []),
        (PatchCall("/etc", PATCH), "inside the workspace", ["a.py"]),
    ],
)
def test_what_does_not_fit_is_exit_code_1_with_the_reason_and_is_seen(call, words, tried):
    h = harness(call)
    run(h)
    (reply,) = replies(h)
    assert (reply.code, reply.stdout) == (1, "")
    assert words in reply.stderr
    assert h.box.files == FILES
    (failed,) = changes(h)
    assert (failed.id, failed.status, [change.path for change in failed.changes]) == ("c1_patch_1", "failed", tried)
    assert f"{failed.error}\n" == reply.stderr


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside", ".git/hooks/post-checkout"])
def test_outside_and_protected_paths_are_refused_where_nobody_is_asked(path):
    h = harness(PatchCall("/workspace", adds(path)), spec=spec(approval="never", sandbox=WorkspaceWrite()))
    run(h)
    assert replies(h)[0].code == 1
    assert h.box.files == FILES
    assert [item.status for item in changes(h)] == ["declined"]
    assert changes(h, "item_started") != []


def test_a_read_only_command_changes_nothing():
    h = harness(PatchCall("/workspace", PATCH), spec=spec(approval="never", sandbox=ReadOnly()))
    run(h)
    assert (replies(h)[0].code, h.box.files) == (1, FILES)


def test_a_command_that_was_approved_with_full_access_writes_with_it():
    h = harness(PatchCall("/workspace", adds("/etc/new")), spec=spec(approval="never", sandbox=DangerFullAccess()))
    run(h)
    assert h.box.applied == [((WriteFile("/etc/new", b"new\n", None),), DangerFullAccess())]


async def asked(h):
    for _ in range(20_000):
        if found := h.of_type("patch_approval_request"):
            return found[-1]
        await asyncio.sleep(0)
    raise AssertionError("nobody was asked")


def asking(**fields):
    approval = spec(approval="on-request", sandbox=WorkspaceWrite())
    return harness(PatchCall("/workspace", adds("/etc/new")), spec=approval, clock=FakeClock(auto=False), **fields)


@pytest.mark.parametrize(("decision", "code"), [(ApprovalDecision.ACCEPT, 0), (ApprovalDecision.DECLINE, 1)])
def test_a_person_is_asked_as_for_the_tool(decision, code):
    async def main():
        h = asking()
        h.submit()
        task = h.start()
        question = await asked(h)
        assert question.item_id == "c1_patch_1"
        h.submit(PatchApproval(approval_id=question.approval_id, decision=decision))
        await task
        h.assert_done()
        assert (replies(h)[0].code, "/etc/new" in h.box.files) == (code, code == 0)

    asyncio.run(main())


def test_a_question_that_nobody_answers_in_time_is_a_no_since_a_command_cannot_be_parked():
    async def main():
        h = asking(hold_time_s=5)
        h.submit()
        task = h.start()
        await asked(h)
        await h.clock.advance(6)
        await task
        h.assert_done()
        assert "in time" in replies(h)[0].stderr
        assert [e.decision for e in h.of_type("request_resolved")] == ["expired"]
        assert h.of_type("turn_completed") != []

    asyncio.run(main())


def test_cancel_as_the_answer_ends_the_turn():
    async def main():
        h = asking(command={"hangs": True})
        h.submit()
        task = h.start()
        question = await asked(h)
        h.submit(PatchApproval(approval_id=question.approval_id, decision=ApprovalDecision.CANCEL))
        await task
        assert h.of_type("turn_interrupted") != []
        assert h.session._thread.journal.open_items == {}

    asyncio.run(main())


def test_an_interrupt_cuts_off_a_question_and_closes_every_item():
    async def main():
        h = asking()
        h.submit()
        task = h.start()
        await asked(h)
        h.submit(Interrupt())
        await task
        assert h.of_type("turn_interrupted") != []
        assert [item.status for item in changes(h)] == ["interrupted"]
        assert h.box.files == FILES

    asyncio.run(main())


def test_after_its_turn_a_kept_command_patches_nothing():
    async def main():
        h = harness(PatchCall("/workspace", PATCH), command={"hangs": True})
        h.submit()
        task = h.start()
        while not changes(h):
            await settle()
        (command,) = h.session._thread.processes._commands.values()
        await task
        before = dict(h.box.files)
        reply = await command.patches(PatchCall("/workspace", adds("late.py")))
        assert (reply.code, h.box.files) == (1, before)
        assert "turn is over" in reply.stderr

    asyncio.run(main())


def test_a_command_that_patches_without_end_is_held_up():
    h = harness(*(PatchCall("/workspace", b"") for _ in range(501)))
    run(h)
    assert [reply.code for reply in replies(h)] == [1] * 501
    assert "may apply 500 patches" in replies(h)[-1].stderr


def test_a_program_that_is_killed_at_any_moment_leaves_no_item_open_and_no_half_patch():
    async def main(passes):
        h = harness(command={"hangs": True})
        h.submit()
        task = h.start()
        while not h.box.processes:
            await asyncio.sleep(0)
        while not (table := h.session._thread.processes._commands):
            await asyncio.sleep(0)
        (command,) = table.values()
        program = asyncio.create_task(command.patches(PatchCall("/workspace", PATCH)))
        for _ in range(passes):
            await asyncio.sleep(0)
        program.cancel()
        await asyncio.wait([program])
        applied = h.box.files["/workspace/a.py"] == b"x = 2\n"
        await h.session._thread.journal.flush()
        done = [item.status for item in changes(h)]
        assert len(done) == len(changes(h, "item_started"))
        assert applied == (done == ["completed"])
        await task

    for passes in range(30):
        asyncio.run(main(passes))
