"""Time limits of the channel, with clocks that the test turns."""

import asyncio

import pytest

from patchyard.adapters.queue import QueueThreadChannel, ThreadRegistration
from patchyard.agent.ports import LeaseLost
from patchyard.protocol import events, ops
from patchyard.protocol.ids import new_id
from patchyard.testing.queue import MemoryQueueCore
from tests.waiting import WAIT_S


async def opened(core: MemoryQueueCore, monotonic: list[float]) -> QueueThreadChannel:
    thread = new_id()
    op = ops.TurnInput(items=(ops.TextInput(text="x"),))
    submission = ops.Submission(id=new_id(), tenant_id="t", thread_id=thread, op=op, submitted_at=1)
    await core.submit(submission, registration=ThreadRegistration())
    claim = await core.claim("w")
    assert claim is not None
    monotonic[0] = claim.leased_at
    return QueueThreadChannel(core, claim, monotonic=lambda: monotonic[0], now_ms=lambda: 99)


def test_an_unreachable_queue_is_tried_until_the_lease_ends_and_not_longer() -> None:
    async def main() -> None:
        core, clock = MemoryQueueCore(lease_ttl_s=30), [0.0]
        channel = await opened(core, clock)
        core.memory.available = False
        writing = asyncio.ensure_future(channel.commit([events.Warning_(message="m")]))
        clock[0] += 29.9
        await asyncio.wait({writing}, timeout=0.5)
        assert not writing.done()
        clock[0] += 0.2
        with pytest.raises(LeaseLost):
            await asyncio.wait_for(writing, WAIT_S)

    asyncio.run(main())


def test_a_renewed_lease_is_waited_for_longer() -> None:
    async def main() -> None:
        core, clock = MemoryQueueCore(lease_ttl_s=30), [0.0]
        channel = await opened(core, clock)
        channel.renewed(clock[0] + 20)
        core.memory.available = False
        writing = asyncio.ensure_future(channel.commit([events.Warning_(message="m")]))
        clock[0] += 40
        await asyncio.wait({writing}, timeout=0.5)
        core.memory.available = True
        await asyncio.wait_for(writing, WAIT_S)
        (line,) = await core.read_lines(channel.thread_id, after=None, limit=9)
        assert b'"timestamp":99,' in line.json

    asyncio.run(main())


def test_a_lost_lease_wakes_who_waits() -> None:
    async def main() -> None:
        now = [1_000]
        core = MemoryQueueCore(lease_ttl_s=30, now_ms=lambda: now[0])
        channel = await opened(core, [0.0])
        first = await channel.receive()
        await channel.commit([], consumed=[first.id])
        waiting = asyncio.ensure_future(channel.receive())
        await asyncio.wait({waiting}, timeout=0.05)
        now[0] += 31_000
        assert (await core.reap()).reaped == [channel.thread_id]
        assert await core.beat("w", {channel.thread_id: channel.fence}) == [channel.thread_id]
        with pytest.raises(LeaseLost):
            await asyncio.wait_for(waiting, WAIT_S)
        channel.live(events.AgentMessageDelta(item_id="i", delta="ignored"))

    asyncio.run(main())


def test_live_texts_that_were_lost_on_the_way_do_not_corrupt_what_is_stored() -> None:
    async def main() -> None:
        core = MemoryQueueCore()
        channel = await opened(core, [0.0])

        async def show(text: str) -> None:
            channel.live(events.AgentMessageDelta(item_id="i", delta=text))
            await channel.commit([])

        await show("one ")
        channel.live_buffer.take()
        channel.live(events.AgentMessageDelta(item_id="i", delta="lost "))
        core.memory.available = False
        await asyncio.wait({asyncio.ensure_future(asyncio.Event().wait())}, timeout=0.2)
        core.memory.available = True
        await show("three")
        (text,) = (await core.snapshot(channel.thread_id, after=None, limit=9)).open_texts
        assert (text.offset, text.text) == (9, b"three")
        await core.close()

    asyncio.run(main())
