"""What a person allowed in one task, asked for in another one on the same repository."""

import asyncio

import pytest

from patchyard.agent.recall import Recalled
from patchyard.policy import approval_key
from patchyard.protocol.approvals import AllowedCommand, AllowedPath, AllowedPrefix
from patchyard.protocol.ops import ApprovalDecision, ExecApproval, PatchApproval
from patchyard.protocol.policies import ReadOnly
from patchyard.protocol.tasks import ArchiveSource, GitSource, NoSource
from patchyard.testing.approvals import RepositoryMemory
from patchyard.testing.builders import patch_call, response, says, shell, spec
from patchyard.testing.harness import AgentHarness
from patchyard.testing.scripted_model import Hold
from patchyard.testing.scripted_sandbox import Command

REPOSITORY = "https://example.org/tool"
PATCH = "*** Begin Patch\n*** Add File: {}\n+x\n*** End Patch"
ALWAYS = ApprovalDecision.ACCEPT_FOR_SESSION


def memory(*rules):
    made = RepositoryMemory(REPOSITORY)
    made.allowed |= set(rules)
    return made


def task(call, known, *, approval="untrusted", url=f"{REPOSITORY}.git", **fields):
    """A thread on the repository whose model makes one call."""
    script = getattr(call, "arguments", None)
    commands = [Command(fields.pop("runs"))] if script and "runs" in fields else []
    of_task = spec(approval=approval, repository=GitSource(url=url), **fields)
    return AgentHarness([response(call), says("ok")], commands=commands, spec=of_task, approvals=known)


def asked(h):
    return h.of_type("exec_approval_request", "patch_approval_request")


def answered(h, decision=ALWAYS, **fields):
    """Run the turn; its one question is answered, by somebody."""

    async def main():
        h.submit()
        running = h.start()
        await h.until(lambda: asked(h))
        question = asked(h)[-1]
        kind = ExecApproval if question.type == "exec_approval_request" else PatchApproval
        answer = kind(approval_id=question.approval_id, decision=decision, **fields)
        h.channel.submit(answer, author="anna")
        await running
        h.assert_done()

    asyncio.run(main())
    return h


def unasked(h):
    async def main():
        h.submit()
        await h.run()
        h.assert_done()

    asyncio.run(main())
    assert asked(h) == []
    return h


def remembered(h):
    return [rule for event in h.of_type("approval_remembered") for rule in event.rules]


def test_a_command_that_was_allowed_in_one_task_is_not_asked_in_the_next():
    known = memory()
    first = answered(task(shell("make", "c1"), known, runs="make"))
    (event,) = first.of_type("approval_remembered")
    assert (event.repository, event.by) == (REPOSITORY, "anna")
    assert event.rules == (AllowedCommand(script="make", cwd="/workspace"),)
    assert asked(first)[0].session_scope == "repository"
    known.learn(first.channel.events)
    unasked(task(shell("make", "c2"), known, runs="make"))
    answered(task(shell("make clean", "c3"), known, runs="make clean"), ApprovalDecision.ACCEPT)


def test_accepting_once_is_not_remembered():
    assert answered(task(shell("make", "c1"), memory(), runs="make"), ApprovalDecision.ACCEPT).of_type("standing") == []


def test_a_prefix_rule_counts_for_later_tasks_but_not_for_a_forced_rm():
    known = memory()
    first = answered(task(shell("make a", "c1"), known, runs="make a"), ApprovalDecision.ACCEPT, prefix_rule=("make",))
    assert remembered(first) == [AllowedPrefix(words=("make",))]
    known.learn(first.channel.events)
    unasked(task(shell("make b && make c", "c2"), known, runs="make b && make c"))
    rm = memory(AllowedPrefix(words=("rm",)))
    answered(task(shell("rm -rf build", "c3"), rm, approval="on-request", runs="rm -rf build"), ApprovalDecision.ACCEPT)
    unasked(task(shell("rm old.txt", "c4"), rm, runs="rm old.txt"))


def test_what_leaves_the_sandbox_is_remembered_for_the_thread_only():
    escalated = shell("make", "c1", sandbox_permissions="require_escalated")
    first = answered(task(escalated, memory(), approval="on-request", runs="make"))
    assert (asked(first)[0].session_scope, remembered(first)) == ("thread", [])
    known = memory(AllowedCommand(script="make", cwd="/workspace"), AllowedPrefix(words=("make",)))
    answered(task(escalated, known, approval="on-request", runs="make"), ApprovalDecision.ACCEPT)
    first.next_owner()
    first.model._steps += [response(escalated.model_copy(update={"call_id": "c2"})), says("ok")]
    first.box._expected.append(Command("make"))
    before = len(asked(first))

    async def again():
        first.submit()
        await first.run()

    asyncio.run(again())
    assert len(asked(first)) == before


def test_a_file_that_patches_may_touch():
    known = memory()
    first = answered(task(patch_call(PATCH.format("a.py"), "c1"), known))
    assert remembered(first) == [AllowedPath(path="/workspace/a.py")]
    known.learn(first.channel.events)
    unasked(task(patch_call(PATCH.format("a.py"), "c2"), known))
    answered(task(patch_call(PATCH.format("b.py"), "c3"), known), ApprovalDecision.ACCEPT)


@pytest.mark.parametrize(
    ("path", "more"), [(".git/hooks/x", {}), ("/etc/x", {}), ("a.py", {"sandbox": ReadOnly(), "approval": "on-request"})]
)
def test_a_file_that_the_sandbox_protects_is_asked_in_every_task(path, more):
    known = memory(AllowedPath(path=path if path.startswith("/") else f"/workspace/{path}"))
    h = answered(task(patch_call(PATCH.format(path), "c1"), known, **{"approval": "on-request", **more}))
    assert (asked(h)[0].session_scope, remembered(h)) == ("thread", [])


def test_a_refusal_by_policy_stays_one():
    known = memory(AllowedCommand(script="rm -rf build", cwd="/workspace"))
    h = unasked(task(shell("rm -rf build", "c1"), known, approval="never"))
    assert "nobody can be asked" in h.model.outputs()["c1"]
    assert known.asked == 0


def test_nothing_is_looked_up_for_what_needs_no_question():
    known = memory()
    unasked(task(shell("ls", "c1"), known, runs="ls"))
    assert known.asked == 0


@pytest.mark.parametrize("source", [NoSource(), ArchiveSource(artefact_id="a1", format="tar")])
def test_without_a_repository_to_name_nothing_is_remembered(source):
    of_task = spec(approval="untrusted", repository=source)
    h = answered(AgentHarness([response(shell("make", "c1")), says("ok")], commands=[Command("make")], spec=of_task))
    assert (asked(h)[0].session_scope, remembered(h)) == ("thread", [])


def test_a_revoked_approval_counts_no_more_in_new_turns_of_its_own_thread():
    known = memory()
    h = answered(task(shell("make", "c1"), known, runs="make"))
    known.learn(h.channel.events)
    known.revoke(AllowedCommand(script="make", cwd="/workspace"))
    h.next_owner()
    h.model._steps += [response(shell("make", "c2")), says("ok")]
    h.box._expected.append(Command("make"))

    async def again():
        h.submit()
        running = h.start()
        await h.until(lambda: len(asked(h)) == 2)
        h.submit(ExecApproval(approval_id=asked(h)[1].approval_id, decision=ApprovalDecision.ACCEPT))
        await running

    asyncio.run(again())


@pytest.mark.parametrize("before", [0, 1])
def test_a_revoked_approval_counts_no_more_in_the_turn_that_it_was_given_in(before):
    rule = AllowedCommand(script="make", cwd="/workspace")
    known = memory()
    known.revoked[rule] += before

    async def main():
        pause = Hold(asyncio.Event(), asyncio.Event())
        steps = [response(shell("make", "c1")), [pause, *response(shell("make", "c2"))], says("ok")]
        of_task = spec(approval="untrusted", repository=GitSource(url=REPOSITORY))
        h = AgentHarness(steps, commands=[Command("make"), Command("make")], spec=of_task, approvals=known)
        h.submit()
        running = h.start()
        for number, decision in enumerate((ALWAYS, ApprovalDecision.ACCEPT), start=1):
            await h.until(lambda number=number: len(asked(h)) == number)
            h.submit(ExecApproval(approval_id=asked(h)[-1].approval_id, decision=decision))
            if number == 1:
                await pause.reached.wait()
                known.allowed.add(rule)
                known.revoke(rule)
                pause.until.set()
        await running
        h.assert_done()

    asyncio.run(main())


def test_who_allows_it_anew_after_it_was_revoked_is_not_asked_twice_in_a_turn():
    known = memory()
    known.revoked[AllowedCommand(script="make", cwd="/workspace")] += 1
    steps = [response(shell("make", "c1")), response(shell("make", "c2")), says("ok")]
    of_task = spec(approval="untrusted", repository=GitSource(url=REPOSITORY))
    h = AgentHarness(steps, commands=[Command("make"), Command("make")], spec=of_task, approvals=known)
    assert len(asked(answered(h))) == 1


def test_when_nothing_is_known_what_the_thread_was_told_still_counts():
    class Away:
        async def recall(self):
            return Recalled()

    h = answered(task(shell("make", "c1"), Away(), runs="make"))
    h.next_owner()
    h.model._steps += [response(shell("make", "c2")), says("ok")]
    h.box._expected.append(Command("make"))

    async def again():
        h.submit()
        await h.run()

    asyncio.run(again())
    assert len(asked(h)) == 1


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://example.org/a/tool.git", "https://example.org/a/tool"),
        ("https://example.org/a/tool/", "https://example.org/a/tool"),
        ("https://TOKEN@Example.org/a/tool", "https://example.org/a/tool"),
        ("https://example.org/a/Tool", "https://example.org/a/Tool"),
        ("ssh://git@example.org/a/tool.git", "ssh://git@example.org/a/tool"),
        ("git@example.org:a/tool.git", "git@example.org:a/tool"),
        ("/srv/tool/.", "/srv/tool"),
        ("https://[no-address/tool", "https://[no-address/tool"),
        ("/srv/tool.git", "/srv/tool.git"),
    ],
)
def test_what_counts_as_one_repository(url, key):
    assert approval_key(GitSource(url=url)) == key
