"""The thread channel: order, fencing, repeats, the end of a turn, parking."""

import asyncio
import json
from typing import Any

import pytest

from patchyard.adapters.queue import ControlReader, LeaseReleased, QueueMisuse, ThreadStatus
from patchyard.adapters.queue import _channel as channel_module
from patchyard.agent.ports import LeaseLost
from patchyard.protocol import events, ops
from patchyard.protocol.ids import new_id
from patchyard.protocol.model_items import Message, OutputText
from patchyard.protocol.rollout_lines import Effect
from tests.conformance.queue.kit import WAIT_S, Kit, MakeBackend, completed, kit, say, started, until


async def _status(k: Kit, thread: str) -> ThreadStatus:
    state = await k.core.thread_state(thread)
    assert state is not None
    return state.status


def test_records_are_numbered_stamped_and_read_back(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            message = Message(role="assistant", content=(OutputText(text='a "quoted" é \U0001f600 text'),), id="m1")
            effect = Effect(key="k", stage="intent", kind="branch")
            await run.channel.commit([message, effect], turn_id=run.turn)
            assert run.channel.next_ordinal == 3
            lines = await k.core.read_lines(run.thread, after=0, limit=10)
            first, second = (json.loads(line.json) for line in lines)
            assert [line.ordinal for line in lines] == [first["ordinal"], second["ordinal"]] == [1, 2]
            assert (first["type"], second["type"], first["turn_id"]) == ("response_item", "effect", run.turn)
            assert first["payload"] == message.model_dump(mode="json")
            assert [line.ordinal for line in await k.core.read_lines(run.thread, after=None, limit=2)] == [0, 1]

    asyncio.run(main())


def test_a_lone_surrogate_of_a_model_does_not_stop_a_turn(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            message = Message(role="assistant", content=(OutputText(text="bad \ud800 half"),))
            await run.channel.commit([message], turn_id=run.turn)
            (line,) = await k.core.read_lines(run.thread, after=0, limit=10)
            assert json.loads(line.json)["payload"]["content"][0]["text"] == "bad \ufffd half"

    asyncio.run(main())


def test_a_commit_whose_answer_got_lost_is_written_once(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            steer = (await k.submit(run.thread, say("more"))).submission_id
            await run.channel.receive()
            k.server.only, k.server.lose, k.server.refuse = "commit", 1, 1
            await run.channel.commit([started("again")], turn_id=run.turn, consumed=[steer])
            await run.channel.commit([started("third")], turn_id=run.turn)
            assert await k.event_types(run.thread) == ["turn_started"] * 3
            state = await k.core.thread_state(run.thread)
            assert state is not None
            assert (state.waiting, state.next_ordinal) == (0, 3)

    asyncio.run(main())


@pytest.mark.parametrize("then", ["idle", "more"])
def test_an_end_of_a_turn_whose_answer_got_lost_is_the_same_end(backend: MakeBackend, then: str) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            if then == "more":
                await k.submit(run.thread, ops.ThreadSettings(overrides=ops.TurnOverrides()))
            k.server.only, k.server.lose = "finish_turn", 1
            assert await run.channel.finish_turn([completed()], turn_id=run.turn)
            assert run.channel.held == (then == "more")
            assert await k.event_types(run.thread) == ["turn_started", "turn_completed"]

    asyncio.run(main())


def test_a_park_whose_answer_got_lost_is_done_once(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            k.server.only, k.server.lose = "park", 1
            await run.channel.park([events.TurnParked(reason="approval")], turn_id=run.turn)
            assert await _status(k, run.thread) == ThreadStatus.PARKED
            assert await k.event_types(run.thread) == ["turn_started", "turn_parked"]

    asyncio.run(main())


def test_a_server_that_is_away_is_waited_for_until_the_lease_is_gone(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            k.server.refuse = 1_000_000
            run.channel._monotonic = lambda: run.channel._deadline
            with pytest.raises(LeaseLost):
                async with asyncio.timeout(WAIT_S):
                    await run.channel.commit([started()], turn_id=run.turn)
            assert not run.channel.held
            k.server.refuse = 0

    asyncio.run(main())


def test_a_cancelled_commit_is_written_whole_and_in_order(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            commit = asyncio.ensure_future(run.channel.commit([started("cancelled")], turn_id=run.turn))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            commit.cancel()
            with pytest.raises(asyncio.CancelledError):
                await commit
            await run.channel.commit([completed()], turn_id=run.turn)
            assert await k.event_types(run.thread) == ["turn_started", "turn_started", "turn_completed"]

    asyncio.run(main())


def test_commits_of_many_tasks_leave_no_gap(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            await asyncio.gather(*(run.channel.commit([started(f"{i}")] * 3, turn_id=run.turn) for i in range(20)))
            lines = await k.core.read_lines(run.thread, after=None, limit=100)
            assert [json.loads(line.json)["ordinal"] for line in lines] == list(range(61))

    asyncio.run(main())


def test_an_undelivered_steer_keeps_the_turn_open(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            steer = (await k.submit(run.thread, say("wait"))).submission_id
            assert not await run.channel.finish_turn([completed()], turn_id=run.turn)
            assert (await run.channel.receive()).id == steer
            assert not await run.channel.finish_turn([completed()], turn_id=run.turn), "received, not consumed"
            await run.channel.commit([started()], turn_id=run.turn, consumed=[steer])
            assert await run.channel.finish_turn([completed()], turn_id=run.turn)
            assert await k.event_types(run.thread) == ["turn_started", "turn_started", "turn_completed"]

    asyncio.run(main())


def test_with_nothing_left_the_lease_ends_with_the_turn(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            assert await run.channel.finish_turn([completed()], turn_id=run.turn)
            with pytest.raises(LeaseReleased):
                await run.channel.receive()
            assert await _status(k, run.thread) == ThreadStatus.IDLE
            assert (await k.core.reap()).running == 0

    asyncio.run(main())


def test_with_more_to_do_the_worker_goes_on(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            compact = (await k.submit(run.thread, ops.Compact())).submission_id
            late = await k.submit(run.thread, ops.ExecApproval(approval_id="a", decision=ops.ApprovalDecision.ACCEPT))
            assert late.admission == ops.Applied()
            assert await run.channel.finish_turn([completed()], turn_id=run.turn)
            state = await k.core.thread_state(run.thread)
            assert state is not None
            assert (state.status, state.active_turn_id) == (ThreadStatus.RUNNING, compact)
            assert (await run.channel.receive()).id == compact
            assert (await run.channel.receive()).id == late.submission_id, "the late answer is still owed one"
            await run.channel.commit([events.OpRejected(op="exec_approval", message="too late")], consumed=[late.submission_id])
            assert await run.channel.finish_turn([completed()], turn_id=compact)
            assert not run.channel.held

    asyncio.run(main())


def test_an_op_without_a_turn_is_done_and_the_lease_given_back(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            thread = new_id()
            op = await k.submit(thread, ops.ThreadSettings(overrides=ops.TurnOverrides(model="x")))
            channel = await k.channel()
            assert (await channel.receive()).id == op.submission_id
            waiting = asyncio.ensure_future(channel.receive())
            applied = events.ThreadSettingsApplied(overrides=ops.TurnOverrides(model="x"))
            await channel.commit([applied], submission_id=op.submission_id, consumed=[op.submission_id])
            with pytest.raises(LeaseReleased):
                async with asyncio.timeout(WAIT_S):
                    await waiting
            assert await _status(k, thread) == ThreadStatus.IDLE

    asyncio.run(main())


def test_the_wrong_turn_can_not_be_finished(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            with pytest.raises(QueueMisuse, match="WRONG_TURN"):
                await run.channel.finish_turn([completed()], turn_id=new_id())

    asyncio.run(main())


def test_news_reach_a_waiting_channel_through_the_control_stream(backend: MakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "POLL_S", 3600)

    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            reader = asyncio.ensure_future(ControlReader(k.core, "w1").run())
            waiting = asyncio.ensure_future(run.channel.receive())
            try:
                steer = (await k.submit(run.thread, say("news"))).submission_id
                async with asyncio.timeout(WAIT_S):
                    assert (await waiting).id == steer
            finally:
                reader.cancel()
                await asyncio.gather(reader, return_exceptions=True)

    asyncio.run(main())


def test_a_cancelled_receive_loses_nothing(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            steer = (await k.submit(run.thread, say("more"))).submission_id
            for steps in range(12):
                waiting = asyncio.ensure_future(run.channel.receive())
                for _ in range(steps):
                    await asyncio.sleep(0)
                waiting.cancel()
                (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
                if not isinstance(outcome, asyncio.CancelledError):
                    break
            else:
                outcome = await run.channel.receive()
            assert outcome.id == steer

    asyncio.run(main())


@pytest.mark.parametrize(
    ("why", "answer"),
    [
        ("approval", ops.ExecApproval(approval_id="a", decision=ops.ApprovalDecision.ACCEPT)),
        ("user_input", ops.UserInputAnswer(request_id="r", answers={})),
        ("budget", ops.BudgetAnswer(request_id="b", decision="accept")),
    ],
)
def test_a_parked_turn_is_woken_by_an_answer_under_the_same_id(backend: MakeBackend, why: Any, answer: ops.Op) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            await run.channel.park([events.TurnParked(reason=why)], turn_id=run.turn)
            assert await _status(k, run.thread) == ThreadStatus.PARKED
            assert await k.core.claim("w") is None
            assert (await k.core.reap()).running == 0
            assert (await k.submit(run.thread, answer)).admission == ops.Applied()
            claim = await k.claim("w2")
            assert (claim.active_turn_id, claim.reason, claim.segment, claim.crashes) == (run.turn, "unparked", 2, 0)

    asyncio.run(main())


def test_an_answer_that_raced_the_parking_wakes_the_turn(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            await k.submit(run.thread, ops.ExecApproval(approval_id="a", decision=ops.ApprovalDecision.ACCEPT))
            await run.channel.park([events.TurnParked(reason="approval")], turn_id=run.turn)
            assert (await k.claim("w2")).reason == "unparked"

    asyncio.run(main())


def test_an_op_that_was_left_on_purpose_does_not_wake_a_parked_turn(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            await k.submit(run.thread, ops.Compact())
            await run.channel.receive()
            await run.channel.park([events.TurnParked(reason="approval")], turn_id=run.turn)
            assert await _status(k, run.thread) == ThreadStatus.PARKED

    asyncio.run(main())


def test_a_parked_turn_wakes_at_its_time(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            await run.channel.park([events.TurnParked(reason="retry_time", until=1)], turn_id=run.turn, until_ms=1)

            async def ready() -> bool:
                return (await k.core.reap()).ready == 1

            await until(ready)
            assert (await k.claim("w2")).reason == "unparked"

    asyncio.run(main())


def test_a_handed_over_turn_is_ready_at_once(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            await run.channel.hand_over()
            with pytest.raises(LeaseReleased):
                await run.channel.receive()
            claim = await k.claim("w2")
            assert (claim.active_turn_id, claim.reason, claim.segment) == (run.turn, "hand_over", 2)

    asyncio.run(main())


def test_the_container_is_recorded_under_the_lease(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            await run.channel.set_container("box-1")
            state = await k.core.thread_state(run.thread)
            assert state is not None
            assert state.container == "box-1"

    asyncio.run(main())


def test_only_confirmed_records_are_trimmed_and_the_rest_is_listed(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            await run.channel.commit([started()] * 4, turn_id=run.turn)
            (candidate,) = await k.core.threads_to_flush()
            assert (candidate.thread_id, candidate.tenant_id) == (run.thread, "default")
            assert (candidate.first_ordinal, candidate.next_ordinal) == (0, 5)
            await k.core.trim(run.thread, 2)
            assert [line.ordinal for line in await k.core.read_lines(run.thread, after=None, limit=9)] == [3, 4]
            (candidate,) = await k.core.threads_to_flush()
            assert (candidate.first_ordinal, candidate.next_ordinal) == (3, 5)
            await k.core.trim(run.thread, 1)
            await k.core.trim(run.thread, 99)
            assert await k.core.threads_to_flush() == []
            assert await k.core.read_lines(run.thread, after=None, limit=9) == []
            await run.channel.commit([started()], turn_id=run.turn)
            (candidate,) = await k.core.threads_to_flush()
            assert (candidate.first_ordinal, candidate.next_ordinal) == (5, 6)
            state = await k.core.thread_state(run.thread)
            assert state is not None
            assert (state.trimmed_through, state.next_ordinal) == (4, 6)

    asyncio.run(main())
