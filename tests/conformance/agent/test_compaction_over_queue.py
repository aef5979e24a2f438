"""Compaction over the queue's own channel: own turns, waiting for a running one, crashes."""

import asyncio
import contextlib

import pytest

from patchyard.agent.ports import LeaseLost
from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.ids import new_id
from patchyard.protocol.ops import Compact, Interrupt
from patchyard.testing.builders import response, says, shell, usage
from patchyard.testing.scripted_model import Hold
from patchyard.testing.scripted_sandbox import Command
from tests.conformance.agent.test_session_over_queue import OverQueue
from tests.conformance.queue.conftest import backend, server_urls  # noqa: F401
from tests.conformance.queue.kit import kit as opened
from tests.conformance.queue.kit import say

FULL = usage(8_000, 100)


async def compacted(h):
    return [line for line in await h.lines() if line.type == "compacted"]


def hold():
    return Hold(asyncio.Event(), asyncio.Event())


def test_an_idle_thread_compacts_in_a_turn_of_its_own(backend):  # noqa: F811
    async def main():
        async with opened(backend) as kit:
            thread = new_id()
            await kit.submit(thread, say("fix it"))
            h = OverQueue(kit, thread, [says("one"), says("sum"), says("two")])
            await h.own()
            await h.serve()
            op = await kit.submit(thread, Compact())
            assert op.admission.type == "started"
            await h.own("w2")
            await h.serve()
            (line,) = await compacted(h)
            assert (line.turn_id, line.payload.window_number) == (op.submission_id, 1)
            await kit.submit(thread, say("go on"))
            await h.own("w3")
            await h.serve()
            h.model.assert_done()
            assert [r.window_number for r in h.model.requests] == [0, 0, 1]
            assert (await kit.core.thread_state(thread)).status == "idle"

    asyncio.run(main())


def test_during_the_last_step_it_waits_for_the_turns_end(backend):  # noqa: F811
    async def main():
        async with opened(backend) as kit:
            thread = new_id()
            await kit.submit(thread, say("fix it"))
            pause = hold()
            h = OverQueue(kit, thread, [[pause, *says("one")], says("sum")])
            await h.own()
            task = asyncio.create_task(h.serve())
            await pause.reached.wait()
            op = await kit.submit(thread, Compact())
            assert op.admission.type == "applied"
            h.channel.wake()
            pause.until.set()
            await task
            if not await compacted(h):
                # The session left before it saw the Op: as its worker does, it is given to the next owner.
                with contextlib.suppress(LeaseLost):
                    await h.channel.hand_over()
                await h.own("w2")
                await h.serve()
            kinds = [e.kind for e in await h.events() if e.type == "turn_started"]
            assert kinds == ["regular", "compact"]
            assert len(await compacted(h)) == 1
            assert (await kit.core.thread_state(thread)).status == "idle"

    asyncio.run(main())


def test_a_steer_while_a_turn_is_compacted_is_delivered_behind_the_summary(backend):  # noqa: F811
    async def main():
        async with opened(backend) as kit:
            thread = new_id()
            await kit.submit(thread, say("fix it"))
            pause = hold()
            steps = [response(shell("ls", "c1"), tokens=FULL), [pause, *says("sum")], says("ok")]
            h = OverQueue(kit, thread, steps, commands=[Command("ls")], model_context_window=10_000)
            await h.own()
            task = asyncio.create_task(h.serve())
            await pause.reached.wait()
            await kit.submit(thread, say("and this"))
            h.channel.wake()
            await h.until(lambda: h.session._turn.state.steers)
            pause.until.set()
            await task
            assert h.model.requests[-1].input[-1].content[0].text == "and this"
            assert (await h.events())[-1].type == "turn_completed"

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["in a turn", "own turn"])
def test_the_next_worker_repeats_what_was_cut_off(backend, kind):  # noqa: F811
    async def main():
        async with opened(backend) as kit:
            thread = new_id()
            await kit.submit(thread, say("fix it"))
            pause, own = hold(), kind == "own turn"
            first = says("one") if own else response(shell("ls", "c1"), tokens=FULL)
            rest = [says("sum")] if own else [says("sum"), says("ok")]
            h = OverQueue(kit, thread, [first, [pause], *rest], commands=[Command("ls")][own:], model_context_window=10_000)
            await h.own()
            if own:
                await h.serve()
                await kit.submit(thread, Compact())
                await h.own("w2")
            task = asyncio.create_task(h.serve())
            await pause.reached.wait()
            before = len(await compacted(h))
            h.session.suspend()
            await task
            await h.channel.hand_over()
            await h.own("w3")
            await h.serve()
            h.model.assert_done()
            assert (before, len(await compacted(h))) == (0, 1)
            ended = [e for e in await h.events() if e.type in ("turn_completed", "turn_failed")]
            assert len(ended) == (2 if own else 1)

    asyncio.run(main())


def test_an_interrupt_ends_a_compact_turn(backend):  # noqa: F811
    async def main():
        async with opened(backend) as kit:
            thread = new_id()
            await kit.submit(thread, say("fix it"))
            pause = hold()
            h = OverQueue(kit, thread, [says("one"), [pause]])
            await h.own()
            await h.serve()
            await kit.submit(thread, Compact())
            await h.own("w2")
            task = asyncio.create_task(h.serve())
            await pause.reached.wait()
            steer = await kit.submit(thread, say("more"))
            assert steer.admission.reason == "active_turn_not_steerable"
            await kit.submit(thread, Interrupt())
            h.channel.wake()
            await task
            assert (await h.events())[-1].type == "turn_interrupted"
            assert await compacted(h) == []
            assert ErrorCode.INTERNAL not in [getattr(e, "error", None) for e in await h.events()]

    asyncio.run(main())
