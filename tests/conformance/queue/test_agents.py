"""Threads that serve the agents of a turn: they end with it, they wake it, and what they use is part of what it uses."""

import asyncio
from typing import Any

import pytest
from pydantic import TypeAdapter

from patchyard.adapters.queue import ParentTurn, ThreadClosedError, ThreadStatus
from patchyard.protocol import events, ops
from patchyard.protocol.ids import new_id
from patchyard.protocol.model_items import FunctionCall, TokenUsage
from patchyard.protocol.rollout_lines import EventMsgLine, LinePayload, ModelRequestRecord, RolloutLine
from tests.conformance.queue.kit import Kit, MakeBackend, Running, completed, interrupted, kit, say

LINE: TypeAdapter[Any] = TypeAdapter(RolloutLine)
WAITS = events.TurnParked(reason="agents")


def used(tokens: int, cost: float | None = None) -> tuple[LinePayload, ...]:
    """A model request and a call."""
    usage = TokenUsage(input_tokens=tokens, total_tokens=tokens)
    request = ModelRequestRecord(
        request_id="r",
        model="m",
        provider="p",
        transport="sse",
        attempt=1,
        usage=usage,
        cost_usd=cost,
        queued_at=1,
        input_items=3,
    )
    return request, FunctionCall(call_id="c", name="exec_command", arguments="{}")


async def agent(k: Kit, parent: Running) -> str:
    """An agent that waits for a worker."""
    thread = new_id()
    await k.submit(thread, say(), parent=ParentTurn(parent.thread, parent.turn))
    return thread


async def running_agent(k: Kit, parent: Running) -> Running:
    return await k.running(parent=ParentTurn(parent.thread, parent.turn))


async def parked(run: Running, *awaits: str) -> None:
    await run.channel.park([WAITS], turn_id=run.turn, awaits=awaits)


async def end_of(k: Kit, thread: str) -> events.TurnInterrupted:
    lines = [LINE.validate_json(line.json) for line in await k.core.read_lines(thread, after=None, limit=1000)]
    payloads = [line.payload for line in lines if isinstance(line, EventMsgLine)]
    (end,) = [payload for payload in payloads if isinstance(payload, events.TurnInterrupted)]
    return end


async def status(k: Kit, thread: str) -> ThreadStatus:
    state = await k.core.thread_state(thread)
    assert state is not None
    return state.status


@pytest.mark.parametrize("op", [ops.Interrupt(), ops.Shutdown()])
def test_the_end_of_a_parked_turn_is_the_end_of_its_agents_wherever_they_are(backend: MakeBackend, op: ops.Op) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            parent = await k.running(task="t")
            running = await running_agent(k, parent)
            waiting = await running_agent(k, parent)
            idle = await running_agent(k, parent)
            grandchild, below, queued = [await agent(k, above) for above in (running, waiting, parent)]
            await waiting.channel.park([events.TurnParked(reason="retry_time")], turn_id=waiting.turn)
            await idle.channel.finish_turn([completed()], turn_id=idle.turn)
            await parked(parent, running.thread)
            stop = await k.submit(parent.thread, op)
            assert await k.event_types(queued) == ["turn_interrupted", "thread_closed"]
            assert await k.event_types(waiting.thread) == ["turn_started", "turn_parked", "turn_interrupted", "thread_closed"]
            assert await k.event_types(idle.thread) == ["turn_started", "turn_completed", "thread_closed"]
            assert await k.event_types(below) == await k.event_types(grandchild) == ["turn_interrupted", "thread_closed"]
            told = await running.channel.receive()
            assert (told.id, told.op) == (stop.submission_id, ops.Shutdown())
            with pytest.raises(ThreadClosedError):
                await k.submit(running.thread, say())
            assert await running.channel.finish_turn([interrupted()], turn_id=running.turn)
            await running.channel.commit([events.ThreadClosed()], consumed=[told.id])
            assert await k.core.claim("w") is None, "nothing of the family goes on"

    asyncio.run(main())


def test_the_end_that_a_worker_writes_ends_the_agents_too(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            parent = await k.running()
            running = await running_agent(k, parent)
            queued = await agent(k, parent)
            await parent.channel.finish_turn([completed()], turn_id=parent.turn)
            assert await status(k, queued) == ThreadStatus.CLOSED
            assert (await running.channel.receive()).op == ops.Shutdown()
            await running.channel.finish_turn([interrupted()], turn_id=running.turn)

    asyncio.run(main())


def test_a_turn_that_is_over_gets_no_agents(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            parent = await k.running()
            await parent.channel.finish_turn([completed()], turn_id=parent.turn)
            with pytest.raises(ThreadClosedError):
                await agent(k, parent)
            with pytest.raises(ThreadClosedError):
                await k.submit(new_id(), say(), parent=ParentTurn(new_id(), new_id()))

    asyncio.run(main())


def test_the_end_of_an_agents_turn_wakes_who_waits_for_it_and_nobody_else(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            parent = await k.running()
            other = await running_agent(k, parent)
            awaited = await running_agent(k, parent)
            await parked(parent, awaited.thread)
            await other.channel.finish_turn([completed()], turn_id=other.turn)
            assert await status(k, parent.thread) == ThreadStatus.PARKED
            await awaited.channel.finish_turn([completed()], turn_id=awaited.turn)
            claim = await k.claim("w2")
            assert (claim.thread_id, claim.active_turn_id, claim.reason) == (parent.thread, parent.turn, "unparked")

    asyncio.run(main())


def test_an_agent_that_ends_without_a_worker_wakes_its_parent(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            parent = await k.running()
            queued = await agent(k, parent)
            await parked(parent, queued)
            await k.submit(queued, ops.Interrupt())
            assert (await k.claim("w2")).thread_id == parent.thread

    asyncio.run(main())


def test_an_agent_that_ended_just_before_the_park_is_not_missed(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            parent = await k.running()
            child = await running_agent(k, parent)
            await child.channel.finish_turn([completed()], turn_id=child.turn)
            await parked(parent, child.thread)
            assert (await k.claim("w2")).thread_id == parent.thread

    asyncio.run(main())


def test_a_turn_that_waits_for_a_person_is_not_woken_by_its_agents(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            parent = await k.running()
            child = await running_agent(k, parent)
            await parked(parent, child.thread)
            await k.submit(parent.thread, ops.ExecApproval(approval_id="a", decision=ops.ApprovalDecision.ACCEPT))
            again = await k.channel("w2")
            answer = await again.receive()
            await again.commit([events.OpApplied(op="exec_approval")], turn_id=parent.turn, consumed=[answer.id])
            await again.park([events.TurnParked(reason="approval")], turn_id=parent.turn)
            await child.channel.finish_turn([completed()], turn_id=child.turn)
            assert await status(k, parent.thread) == ThreadStatus.PARKED

    asyncio.run(main())


@pytest.mark.parametrize("cost", [0.25, None])
def test_what_agents_use_is_part_of_what_the_turns_above_them_use(backend: MakeBackend, cost: float | None) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            parent = await k.running()
            child = await running_agent(k, parent)
            grandchild = await running_agent(k, child)
            await parent.channel.commit(used(1, cost), turn_id=parent.turn)
            await child.channel.commit(used(10, cost), turn_id=child.turn)
            await grandchild.channel.commit(used(100, cost), turn_id=grandchild.turn)
            state = await k.core.thread_state(child.thread)
            assert state is not None
            assert state.spent is not None
            assert (state.spent.usage.total_tokens, state.spent.model_requests, state.spent.tool_calls) == (110, 2, 2)
            assert state.spent.cost_usd == (None if cost is None else 2 * cost)
            own = await k.core.thread_state(parent.thread)
            assert own is not None
            assert own.spent is None, "a thread of its own has turns to tell of that"
            await parent.channel.hand_over(turn_id=parent.turn)
            claim = await k.claim("w2")
            assert claim.spent.usage.total_tokens == 111

    asyncio.run(main())


def test_an_interrupt_of_a_parked_turn_tells_what_it_and_its_agents_have_used(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            parent = await k.running()
            child = await running_agent(k, parent)
            await parent.channel.commit(used(1, 0.5), turn_id=parent.turn)
            await child.channel.commit(used(10, 0.25), turn_id=child.turn)
            await child.channel.finish_turn([completed()], turn_id=child.turn)
            second = await running_agent(k, parent)
            await parked(parent, second.thread)
            await k.submit(parent.thread, ops.Interrupt())
            end = await end_of(k, parent.thread)
            assert (end.usage.total_tokens, end.cost_usd, end.model_requests, end.tool_calls) == (11, 0.75, 2, 2)
            await second.channel.commit(used(1000), turn_id=second.turn)
            follow_up = await k.submit(parent.thread, say())
            await k.submit(parent.thread, ops.Interrupt(turn_id=follow_up.submission_id))
            lines = [LINE.validate_json(li.json) for li in await k.core.read_lines(parent.thread, after=None, limit=99)]
            assert lines[-1].payload.usage.total_tokens == 0, "what comes after the end is not the next turn's"

    asyncio.run(main())


def test_answers_travel_with_the_end_of_a_turn(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            stop = (await k.submit(run.thread, ops.Interrupt())).submission_id
            assert (await run.channel.receive()).id == stop
            answer = events.OpApplied(op="interrupt")
            k.server.only, k.server.lose = "finish_turn", 1
            assert await run.channel.finish_turn([interrupted()], turn_id=run.turn, answers={stop: [answer]})
            lines = [LINE.validate_json(li.json) for li in await k.core.read_lines(run.thread, after=0, limit=99)]
            assert [(li.ordinal, li.payload.type, li.submission_id) for li in lines] == [
                (1, "op_applied", stop),
                (2, "turn_interrupted", None),
            ]
            state = await k.core.thread_state(run.thread)
            assert state is not None
            assert (state.status, state.waiting, state.next_ordinal) == (ThreadStatus.IDLE, 0, 3)

    asyncio.run(main())


def test_a_steer_keeps_answers_from_being_written_twice(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            stop = (await k.submit(run.thread, ops.Interrupt())).submission_id
            steer = (await k.submit(run.thread, say("more"))).submission_id
            assert [entry.submission.id for entry in await run.channel.take_waiting()] == [stop, steer]
            answers = {stop: [events.OpApplied(op="interrupt")]}
            assert not await run.channel.finish_turn([interrupted()], turn_id=run.turn, answers=answers)
            assert await run.channel.finish_turn([interrupted(steer)], turn_id=run.turn, consumed=[steer], answers=answers)
            assert await k.event_types(run.thread) == ["turn_started", "op_applied", "turn_interrupted"]

    asyncio.run(main())
