import asyncio

import pytest

from patchyard.protocol.ops import ApprovalDecision, ExecApproval, PatchApproval
from patchyard.protocol.policies import ReadOnly
from patchyard.protocol.rollout_lines import Compacted
from patchyard.testing.builders import patch_call, response, says, shell, spec
from patchyard.testing.harness import AgentHarness
from patchyard.testing.scripted_sandbox import Command

PATCH = "*** Begin Patch\n*** Add File: a.py\n+x\n*** End Patch"


async def answered(h, kind, op, **fields):
    """Run a turn in which one question is answered."""
    h.submit()
    task = h.start()
    await h.until(lambda: h.of_type(kind))
    h.submit(op(approval_id=h.of_type(kind)[0].approval_id, decision=ApprovalDecision.ACCEPT_FOR_SESSION, **fields))
    await task


def compact(h):
    """What a compaction leaves: nothing before it is read again."""
    channel = h.channel
    journal = h.session._journal
    channel._write(journal._take([Compacted(window_number=1, replacement_history=(), reason="manual")]), None, None, ())
    index = next(i for i, line in enumerate(channel.lines) if line.type == "compacted")
    return channel.lines[:1] + channel.lines[index:]


@pytest.mark.parametrize("compacted", [False, True])
def test_a_command_allowed_for_the_thread_is_not_asked_again_after_a_restart(compacted):
    async def main():
        rm = "rm -rf build"
        h = AgentHarness([response(shell(rm, "c1")), says("ok")], commands=[Command(rm), Command(rm)])
        await answered(h, "exec_approval_request", ExecApproval)
        if compacted:
            lines = compact(h)
            assert [line.type for line in lines][:3] == ["session_meta", "compacted", "standing"]
            h.model.requests.clear()
        h.next_owner()
        h.model._steps += [response(shell(rm, "c2")), says("ok")]
        h.submit()
        await h.run()
        h.assert_done()
        assert len(h.of_type("exec_approval_request")) == 1

    asyncio.run(main())


def test_a_prefix_rule_survives_a_restart_but_never_covers_an_escalation():
    async def main():
        h = AgentHarness(
            [response(shell("make a", "c1")), says("ok")],
            commands=[Command("make a"), Command("make b")],
            spec=spec(approval="untrusted"),
        )
        await answered(h, "exec_approval_request", ExecApproval, prefix_rule=("make",))
        h.next_owner()
        escalated = shell("make c", "c3", sandbox_permissions="require_escalated")
        h.model._steps += [response(shell("make b", "c2")), response(escalated), says("ok")]
        h.submit()
        task = h.start()
        await h.until(lambda: len(h.of_type("exec_approval_request")) == 2)
        asked = h.of_type("exec_approval_request")[1]
        h.submit(ExecApproval(approval_id=asked.approval_id, decision=ApprovalDecision.DECLINE))
        await task
        h.assert_done()
        assert asked.item_id == "c3"

    asyncio.run(main())


def test_a_file_allowed_for_the_thread_is_not_asked_again_after_a_restart():
    async def main():
        h = AgentHarness([response(patch_call(PATCH, "c1")), says("ok")], spec=spec(sandbox=ReadOnly()))
        await answered(h, "patch_approval_request", PatchApproval)
        h.next_owner()
        h.model._steps += [response(patch_call(PATCH, "c2")), says("ok")]
        h.submit()
        await h.run()
        h.assert_done()
        assert len(h.of_type("patch_approval_request")) == 1

    asyncio.run(main())


def test_a_secret_in_an_allowed_command_is_not_recorded():
    async def main():
        rm = "rm -rf hunter22"
        h = AgentHarness([response(shell(rm, "c1")), says("ok")], commands=[Command(rm)], secrets=("hunter22",))
        await answered(h, "exec_approval_request", ExecApproval)
        assert "hunter22" not in "".join(line.model_dump_json() for line in h.channel.lines)

    asyncio.run(main())
