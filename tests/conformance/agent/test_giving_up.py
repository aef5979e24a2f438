"""A turn that can't be run at all: one end, an answer for each submission, and nothing that is lost or left over."""

import asyncio
from collections import Counter

import pytest

from patchyard.adapters.queue import ParentTurn, QueueThreadChannel, ThreadClosedError
from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.events import TERMINAL_TURN_TYPES
from patchyard.protocol.ids import new_id
from patchyard.protocol.model_items import FunctionCall, TokenUsage
from patchyard.protocol.ops import (
    ApprovalDecision,
    CleanBackgroundTerminals,
    Compact,
    ExecApproval,
    InterAgentCommunication,
    Interrupt,
    RunUserShellCommand,
    Shutdown,
    ThreadSettings,
    TurnOverrides,
)
from patchyard.protocol.rollout_lines import ModelRequestRecord
from patchyard.rollout import decode_line, restore
from patchyard.testing.builders import response, shell
from patchyard.testing.scripted_sandbox import Command
from tests.conformance.agent.test_session_over_queue import OverQueue
from tests.conformance.queue.conftest import backend, server_urls  # noqa: F401
from tests.conformance.queue.kit import kit as opened
from tests.conformance.queue.kit import say
from workers.running.giving_up import GivingUp

WHY = ErrorInfo.of(ErrorCode.INTERNAL, "it can't be run")


async def lines_of(kit, thread):
    return [decode_line(line.json) for line in await kit.core.read_lines(thread, after=None, limit=1000)]


async def given_up(kit, worker="w2", *, whole=False):
    """What a worker does that claims the thread and can't run it. `whole`: nothing of the thread can be run."""
    claim = await kit.claim(worker)
    channel = QueueThreadChannel(kit.core, claim)
    lines = await lines_of(kit, claim.thread_id)
    ending = GivingUp(channel, claim, WHY, lambda record: record, lambda: 1000, None if whole else restore(lines))
    await (ending.thread() if whole else ending.turn())


def answers(lines, *receipts):
    told = [[line for line in lines if line.submission_id == receipt.submission_id] for receipt in receipts]
    return [[getattr(line.payload, "type", line.type) for line in of_one] for of_one in told]


def ends(lines):
    return [line for line in lines if line.type == "event_msg" and line.payload.type in TERMINAL_TURN_TYPES]


def used(tokens):
    usage = TokenUsage(input_tokens=tokens, total_tokens=tokens)
    times = {"queued_at": 1, "completed_at": 2, "input_items": 1}
    return ModelRequestRecord(
        request_id="r", model="m", provider="p", transport="sse", attempt=1, usage=usage, cost_usd=0.5, **times
    )


INPUT = ["item_started", "message", "item_completed"]


def test_a_turn_that_ended_its_workers_ends_with_what_it_used_and_answers_all_that_was_meant_for_it(backend):  # noqa: F811
    async def main():
        async with opened(backend) as kit:
            thread = new_id()
            turn = await kit.submit(thread, say("fix it"), task="t")
            rm = "rm -rf x"
            h = OverQueue(kit, thread, [response(shell(rm, "c1"))], commands=[Command(rm)], hold_time_s=0)
            await h.own()
            await h.serve()  # parks with a question
            (question,) = [event for event in await h.events() if event.type == "exec_approval_request"]
            steer = await kit.submit(thread, say("more"))
            answer = await kit.submit(thread, ExecApproval(approval_id=question.approval_id, decision=ApprovalDecision.ACCEPT))
            settings = await kit.submit(thread, ThreadSettings(overrides=TurnOverrides(model="y")))
            command = await kit.submit(thread, RunUserShellCommand(command="ls"))
            channel = await kit.channel("w2")
            extra = FunctionCall(call_id="c2", name="exec_command", arguments="{}")
            await channel.commit([used(100), extra], turn_id=turn.submission_id)
            stop = await kit.submit(thread, Interrupt())
            await channel.hand_over(turn_id=turn.submission_id)
            await given_up(kit, "w3")
            lines = await lines_of(kit, thread)
            (end,) = ends(lines)
            assert (end.payload.type, end.payload.error, end.turn_id) == ("turn_failed", WHY, turn.submission_id)
            sums = (end.payload.usage.total_tokens, end.payload.cost_usd, end.payload.model_requests, end.payload.tool_calls)
            assert sums == (115, 0.5, 2, 2)
            states = [line.payload.reason for line in lines if getattr(line.payload, "type", "") == "task_status_changed"]
            assert states == ["internal"]
            assert answers(lines, steer, answer, stop) == [INPUT, ["op_rejected"], ["op_rejected"]]
            assert answers(lines, settings, command) == [[], []], "what was not the turn's keeps its place"
            paired = Counter(line.payload.item.id for line in lines if getattr(line.payload, "type", "").startswith("item_"))
            assert set(paired.values()) == {2}
            again = restore(lines)
            assert again.turn is None
            assert again.open_calls == ()
            assert [message.content[0].text for message in again.history if getattr(message, "role", "") == "user"][
                -1
            ] == "more"
            state = await kit.core.thread_state(thread)
            assert (state.active_turn_id, state.waiting) == (command.submission_id, 2)

    asyncio.run(main())


def test_nothing_of_a_thread_can_be_run(backend):  # noqa: F811
    async def main():
        async with opened(backend) as kit:
            thread = new_id()
            asked = [await kit.submit(thread, say("fix it"))]
            note = InterAgentCommunication(author_thread_id=new_id(), message="hi", trigger_turn=False)
            ops = (
                say("more"),
                ThreadSettings(overrides=TurnOverrides(model="y")),
                Compact(),
                RunUserShellCommand(command="ls"),
                CleanBackgroundTerminals(),
                note,
            )
            asked += [await kit.submit(thread, op) for op in ops]
            await given_up(kit, whole=True)
            lines = await lines_of(kit, thread)
            assert answers(lines, *asked) == [
                INPUT,
                INPUT,
                ["thread_settings_applied"],
                [],
                [],
                ["op_rejected"],
                INPUT,
            ]
            turns = [asked[0], asked[3], asked[4]]
            assert [end.turn_id for end in ends(lines)] == [turn.submission_id for turn in turns]
            assert {end.payload.type for end in ends(lines)} == {"turn_failed"}
            state = await kit.core.thread_state(thread)
            assert (state.status, state.waiting, state.worker) == ("idle", 0, None)
            assert await kit.core.claim("w") is None

    asyncio.run(main())


def test_a_thread_that_can_not_be_run_is_closed_when_that_was_asked(backend):  # noqa: F811
    async def main():
        async with opened(backend) as kit:
            run = await kit.running()
            compact = await kit.submit(run.thread, Compact())
            close = await kit.submit(run.thread, Shutdown())
            await run.channel.hand_over(turn_id=run.turn)
            await given_up(kit, whole=True)
            lines = await lines_of(kit, run.thread)
            assert [end.turn_id for end in ends(lines)] == [run.turn, compact.submission_id]
            assert lines[-1].payload.type == "thread_closed"
            assert answers(lines, close) == [["thread_closed"]]
            with pytest.raises(ThreadClosedError):
                await kit.submit(run.thread, say())

    asyncio.run(main())


def test_the_agents_of_a_turn_that_is_given_up_end_with_it(backend):  # noqa: F811
    async def main():
        async with opened(backend) as kit:
            run = await kit.running()
            child = await kit.running(parent=ParentTurn(run.thread, run.turn))
            queued = new_id()
            await kit.submit(queued, say(), parent=ParentTurn(run.thread, run.turn))
            await kit.submit(queued, Interrupt())  # so that the next claim is the parent's
            await child.channel.commit([used(40)], turn_id=child.turn)
            await run.channel.commit([used(2)], turn_id=run.turn)
            await run.channel.hand_over(turn_id=run.turn)
            await given_up(kit)
            (end,) = ends(await lines_of(kit, run.thread))
            assert (end.payload.usage.total_tokens, end.payload.cost_usd) == (42, 1.0)
            assert (await kit.core.thread_state(queued)).status == "closed"
            assert (await child.channel.receive()).op == Shutdown()

    asyncio.run(main())
