"""Interrupt and Shutdown of a thread that no worker holds: the queue decides, and writes the terminal event itself."""

import asyncio
import json
import time
from typing import Any

import pytest
from pydantic import TypeAdapter

from patchyard.adapters.queue import LeaseReleased, ThreadClosedError, ThreadStatus
from patchyard.protocol import events, ops
from patchyard.protocol.ids import new_id
from patchyard.protocol.model_items import FunctionCall, TokenUsage
from patchyard.protocol.rollout_lines import EventMsgLine, ModelRequestRecord, RolloutLine
from tests.conformance.queue.kit import Kit, MakeBackend, completed, interrupted, kit, say

LINE: TypeAdapter[Any] = TypeAdapter(RolloutLine)


async def _records(k: Kit, thread: str) -> list[EventMsgLine]:
    lines = await k.core.read_lines(thread, after=None, limit=1000)
    records = [LINE.validate_json(line.json) for line in lines]
    assert [record.ordinal for record in records] == [line.ordinal for line in lines] == list(range(len(lines)))
    return records


def test_a_queued_turn_is_interrupted_and_names_the_steers_that_were_not_delivered(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            thread = new_id()
            turn = (await k.submit(thread, say())).submission_id
            steers = [(await k.submit(thread, say("more"))).submission_id for _ in range(2)]
            receipt = await k.submit(thread, ops.Interrupt(turn_id=turn))
            assert receipt.admission == ops.Applied()
            (record,) = await _records(k, thread)
            assert (record.turn_id, record.submission_id) == (turn, receipt.submission_id)
            assert abs(record.timestamp - time.time() * 1000) < 60_000
            assert isinstance(record.payload, events.TurnInterrupted)
            assert record.payload.model_copy(update={"duration_ms": 0}) == interrupted(*steers)
            assert await k.core.claim("w") is None
            again = await k.submit(thread, say())
            assert again.admission == ops.Started(turn_id=again.submission_id)

    asyncio.run(main())


def test_a_task_that_never_ran_ends_as_cancelled(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            thread = new_id()
            await k.submit(thread, say(), task="task-1")
            await k.submit(thread, ops.Interrupt())
            assert await k.event_types(thread) == ["task_status_changed", "turn_interrupted"]
            await k.submit(thread, say("follow-up"))
            await k.submit(thread, ops.Interrupt())
            assert await k.event_types(thread) == ["task_status_changed", "turn_interrupted", "turn_interrupted"]

    asyncio.run(main())


def test_other_ops_of_an_interrupted_queued_turn_keep_their_place(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            thread = new_id()
            await k.submit(thread, say())
            settings = (await k.submit(thread, ops.ThreadSettings(overrides=ops.TurnOverrides(model="x")))).submission_id
            compact = (await k.submit(thread, ops.Compact())).submission_id
            await k.submit(thread, ops.Interrupt())
            channel = await k.channel()
            assert channel.active_turn_id == compact
            assert [(await channel.receive()).id for _ in range(2)] == [settings, compact]

    asyncio.run(main())


def _request(cost: float | None, attempt: int = 1) -> ModelRequestRecord:
    usage = TokenUsage(input_tokens=100, cached_input_tokens=40, output_tokens=7, total_tokens=107)
    times = {"queued_at": 1, "input_items": 3}
    return ModelRequestRecord(
        request_id="r", model="m", provider="p", transport="sse", attempt=attempt, usage=usage, cost_usd=cost, **times
    )


@pytest.mark.parametrize(("costs", "total"), [((0.25, 0.5), 0.75), ((None, None), None)])
def test_a_parked_turn_ends_with_what_it_has_used(
    backend: MakeBackend, costs: tuple[float | None, float | None], total: float | None
) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            call = FunctionCall(call_id="c", name="exec_command", arguments="{}")
            await run.channel.commit([_request(costs[0]), call], turn_id=run.turn)
            await run.channel.hand_over(turn_id=run.turn)
            channel = await k.channel("w2")
            parked = events.TurnParked(reason="approval")
            await channel.commit([_request(costs[1], attempt=2)], turn_id=run.turn)
            await channel.park([parked], turn_id=run.turn)
            await k.submit(run.thread, ops.Interrupt())
            last = (await _records(k, run.thread))[-1].payload
            assert isinstance(last, events.TurnInterrupted)
            usage = TokenUsage(input_tokens=200, cached_input_tokens=80, output_tokens=14, total_tokens=214)
            assert (last.usage, last.cost_usd, last.model_requests, last.tool_calls) == (usage, total, 1, 1)
            state = await k.core.thread_state(run.thread)
            assert state is not None
            assert (state.status, state.active_turn_id) == (ThreadStatus.IDLE, None)
            assert (await k.core.reap()).ready == 0

    asyncio.run(main())


def test_a_running_turn_gets_its_interrupt_from_its_worker(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            steer = (await k.submit(run.thread, say("more"))).submission_id
            stop = (await k.submit(run.thread, ops.Interrupt())).submission_id
            received = [await run.channel.receive(), await run.channel.receive()]
            assert [s.id for s in received] == [steer, stop]
            done = await run.channel.finish_turn([interrupted(steer)], turn_id=run.turn, consumed=[steer, stop])
            assert done
            assert await k.event_types(run.thread) == ["turn_started", "turn_interrupted"]

    asyncio.run(main())


def test_shutdown_of_an_idle_thread_closes_it_at_once(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            await run.channel.finish_turn([completed()], turn_id=run.turn)
            assert (await k.submit(run.thread, ops.Shutdown())).admission == ops.Applied()
            assert await k.event_types(run.thread) == ["turn_started", "turn_completed", "thread_closed"]
            state = await k.core.thread_state(run.thread)
            assert state is not None
            assert state.status == ThreadStatus.CLOSED

    asyncio.run(main())


def test_shutdown_of_a_queued_thread_answers_everything_that_waits(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            thread = new_id()
            await k.submit(thread, say())
            steer = (await k.submit(thread, say())).submission_id
            compact = (await k.submit(thread, ops.Compact())).submission_id
            await k.submit(thread, ops.Shutdown())
            first, rejected, closed = await _records(k, thread)
            assert isinstance(first.payload, events.TurnInterrupted)
            assert first.payload.dropped_submission_ids == (steer,)
            assert isinstance(rejected.payload, events.OpRejected)
            assert (rejected.submission_id, rejected.payload.op) == (compact, "compact")
            assert closed.payload == events.ThreadClosed()
            assert await k.core.claim("w") is None

    asyncio.run(main())


def test_shutdown_of_a_running_thread_goes_to_its_worker_and_stops_new_submissions(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            stop = (await k.submit(run.thread, ops.Shutdown())).submission_id
            with pytest.raises(ThreadClosedError):
                await k.submit(run.thread, say())
            assert (await run.channel.receive()).id == stop
            ended = [interrupted(), events.ThreadClosed()]
            assert await run.channel.finish_turn(ended, turn_id=run.turn, consumed=[stop])
            with pytest.raises(LeaseReleased):
                await run.channel.receive()
            state = await k.core.thread_state(run.thread)
            assert state is not None
            assert (state.status, state.waiting, state.worker) == (ThreadStatus.CLOSED, 0, None)

    asyncio.run(main())


def test_a_shutdown_outlives_the_worker_that_should_have_done_it(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            stop = (await k.submit(run.thread, ops.Shutdown())).submission_id
            await k.lose(run.thread)
            channel = await k.channel("w2")
            assert (await channel.receive()).id == stop
            await channel.finish_turn([interrupted()], turn_id=run.turn)
            await channel.commit([events.ThreadClosed()], consumed=[stop])
            with pytest.raises(LeaseReleased):
                await channel.receive()
            assert json.loads((await k.core.read_lines(run.thread, after=1, limit=9))[-1].json)["ordinal"] == 2

    asyncio.run(main())
