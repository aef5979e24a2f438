"""Every submission gets one answer and every turn one end, wherever a worker dies."""

import asyncio
import contextlib
from collections import Counter

import pytest

from patchyard.adapters.queue import QueueUnavailable
from patchyard.agent.ports import LeaseLost
from patchyard.protocol.events import TERMINAL_TURN_TYPES
from patchyard.protocol.ids import new_id
from patchyard.protocol.ops import Compact, Interrupt, RunUserShellCommand, Shutdown
from patchyard.testing.builders import response, shell
from patchyard.testing.scripted_model import Hold
from patchyard.testing.scripted_sandbox import Command
from tests.conformance.agent.test_session_over_queue import OverQueue
from tests.conformance.queue.conftest import backend, server_urls  # noqa: F401
from tests.conformance.queue.kit import kit as opened
from tests.conformance.queue.kit import say
from tests.waiting import WAIT_S

WRITES = ("commit", "finish_turn", "park")


class Dies:
    """A server whose worker dies at one of its writes: just before it, or just after it."""

    def __init__(self, inner):
        self.inner = inner
        self.left = None
        self.after = False
        self.dead = False
        self.channel = None

    def at(self, number, channel, *, after):
        self.left, self.channel, self.after, self.dead = number, channel, after, False

    async def run(self, script, args, blobs=(), *, retry=True):
        if script not in WRITES or self.left is None:
            return await self.inner.run(script, args, blobs, retry=retry)
        self.left -= 1
        if self.left >= 0:
            return await self.inner.run(script, args, blobs, retry=retry)
        if self.after and not self.dead:
            await self.inner.run(script, args, blobs, retry=retry)
        self.dead = True
        self.channel.mark_lost()
        raise QueueUnavailable("its worker is dead")

    def __getattr__(self, name):
        return getattr(self.inner, name)


async def interrupted_turn(kit, dies, number, *, after):
    """A turn that is interrupted, whose worker dies at a write after that. None: it did not write so often."""
    thread = new_id()
    await kit.submit(thread, say("fix it"))
    holds = [Hold(asyncio.Event(), asyncio.Event()) for _ in range(3)]
    steps = [response(shell("ls", "c1")), *([hold] for hold in holds)]
    h = OverQueue(kit, thread, steps, commands=[Command("ls", b"a.py")])
    await h.own()
    task = asyncio.create_task(h.serve())
    await asyncio.wait_for(holds[0].reached.wait(), WAIT_S)
    steer = await kit.submit(thread, say("more"))
    stop = await kit.submit(thread, Interrupt())
    dies.at(number, h.channel, after=after)
    h.channel.wake()
    await task
    crashed, dies.left = dies.dead, None
    if crashed and (await kit.core.thread_state(thread)).worker:
        await kit.lose(thread)
        await h.own("w2")
        with contextlib.suppress(LeaseLost):
            await h.serve()
    return await h.lines(), steer.submission_id, stop.submission_id, crashed


@pytest.mark.parametrize("after", [False, True])
def test_an_interrupt_is_answered_once_wherever_the_worker_dies(backend, after):  # noqa: F811
    async def main():
        async with opened(backend) as kit:
            dies = Dies(kit.server)
            kit.core._backend = dies
            for number in range(12):
                lines, steer, stop, crashed = await interrupted_turn(kit, dies, number, after=after)
                events = [line.payload for line in lines if line.type == "event_msg"]
                ends = [event for event in events if event.type in TERMINAL_TURN_TYPES]
                assert [end.type for end in ends] == ["turn_interrupted"], f"died at write {number}"
                assert ends[0].dropped_submission_ids == (steer,)
                answers = [line.payload.type for line in lines if line.submission_id == stop]
                assert answers == ["op_applied"], f"died at write {number}"
                items = Counter(event.item.id for event in events if event.type in ("item_started", "item_completed"))
                assert set(items.values()) <= {2}
                if not crashed:
                    assert number > 0
                    return
            raise AssertionError("it wrote more often than anybody expected")

    asyncio.run(main())


def test_what_waits_when_a_thread_is_closed_is_answered(backend):  # noqa: F811
    async def main():
        async with opened(backend) as kit:
            thread = new_id()
            await kit.submit(thread, say("fix it"))
            pause = Hold(asyncio.Event(), asyncio.Event())
            h = OverQueue(kit, thread, [[pause]])
            await h.own()
            task = asyncio.create_task(h.serve())
            await pause.reached.wait()
            asked = [await kit.submit(thread, op) for op in (RunUserShellCommand(command="ls"), Compact(), Shutdown())]
            h.channel.wake()
            await task
            lines = await h.lines()
            answers = [[line.payload.type for line in lines if line.submission_id == ask.submission_id] for ask in asked]
            assert answers == [["op_rejected"], ["op_rejected"], ["thread_closed"]]
            assert (await kit.core.thread_state(thread)).status == "closed"

    asyncio.run(main())
