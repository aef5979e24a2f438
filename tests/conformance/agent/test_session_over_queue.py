"""Sessions over the queue's own channel: what the in-memory channel promises, the real one keeps."""

import asyncio
from dataclasses import replace

import pytest

from patchyard.agent.ports import LeaseLost
from patchyard.agent.session import SessionOutcome
from patchyard.protocol.ids import new_id
from patchyard.protocol.ops import ApprovalDecision, ExecApproval, Interrupt, Shutdown
from patchyard.rollout import decode_line, restore
from patchyard.testing.builders import response, says, shell
from patchyard.testing.clock import FakeClock
from patchyard.testing.harness import AgentHarness
from patchyard.testing.scripted_model import Hold
from patchyard.testing.scripted_sandbox import Command
from tests.conformance.queue.conftest import backend, server_urls  # noqa: F401
from tests.conformance.queue.kit import Kit, say
from tests.conformance.queue.kit import kit as opened


class OverQueue(AgentHarness):
    """The harness with the queue's channel instead of the one in memory."""

    def __init__(self, kit: Kit, thread: str, steps, **fields):
        super().__init__(steps, clock=FakeClock(auto=False), first_wait_s=5, **fields)
        self.kit, self.thread = kit, thread

    async def own(self, worker="w1"):
        """Claim the thread and make a session of it."""
        self.channel = await self.kit.channel(worker)
        lines = await self.lines()
        self.session = self.new_session(restore(lines) if lines else None)

    async def serve(self):
        """The session's outcome; None: the lease was given back with the last record."""
        try:
            return await asyncio.wait_for(self.session.run(), 10)
        except LeaseLost:
            return None

    async def lines(self):
        return [decode_line(line.json) for line in await self.kit.core.read_lines(self.thread, after=None, limit=1000)]

    async def events(self):
        return [line.payload for line in await self.lines() if line.type == "event_msg"]


def test_a_turn_from_submission_to_its_end(backend):  # noqa: F811
    async def main():
        async with opened(backend) as kit:
            thread = new_id()
            await kit.submit(thread, say("fix it"))
            h = OverQueue(kit, thread, [response(shell("ls", "c1")), says("done")], commands=[Command("ls", b"a.py")])
            await h.own()
            await h.serve()
            types = [e.type for e in await h.events()]
            assert types[:2] == ["session_configured", "turn_started"]
            assert types[-1] == "turn_completed"
            h.model.assert_done()
            h.box.assert_done()
            state = await kit.core.thread_state(thread)
            assert (state.status, state.active_turn_id) == ("idle", None)

    asyncio.run(main())


def test_an_interrupt_is_answered_and_a_steer_is_named(backend):  # noqa: F811
    async def main():
        async with opened(backend) as kit:
            thread = new_id()
            await kit.submit(thread, say("fix it"))
            pause = Hold(asyncio.Event(), asyncio.Event())
            h = OverQueue(kit, thread, [[pause]])
            await h.own()
            task = asyncio.create_task(h.serve())
            await pause.reached.wait()
            steer = await kit.submit(thread, say("more"))
            stop = await kit.submit(thread, Interrupt())
            h.channel.wake()
            await task
            end = (await h.events())[-1]
            assert end.type == "turn_interrupted"
            assert end.dropped_submission_ids == (steer.submission_id,)
            answers = [line.payload.type for line in await h.lines() if line.submission_id == stop.submission_id]
            assert answers == ["op_applied"]

    asyncio.run(main())


def test_a_parked_question_is_answered_by_the_next_owner(backend):  # noqa: F811
    async def main():
        async with opened(backend) as kit:
            thread = new_id()
            await kit.submit(thread, say("fix it"))
            rm = "rm -rf x"
            h = OverQueue(kit, thread, [response(shell(rm, "c1")), says("done")], commands=[Command(rm)], hold_time_s=0)
            await h.own()
            assert await h.serve() is SessionOutcome.PARKED
            (question,) = [e for e in await h.events() if e.type == "exec_approval_request"]
            await kit.submit(thread, ExecApproval(approval_id=question.approval_id, decision=ApprovalDecision.ACCEPT))
            h.config = replace(h.config, hold_time_s=120)
            await h.own("w2")
            await h.serve()
            types = [e.type for e in await h.events()]
            assert "turn_recovered" in types
            assert types[-1] == "turn_completed"
            assert len(h.box.requests) == 1

    asyncio.run(main())


@pytest.mark.parametrize("running", [False, True])
def test_shutdown_closes_the_thread(backend, running):  # noqa: F811
    async def main():
        async with opened(backend) as kit:
            thread = new_id()
            await kit.submit(thread, say("fix it"))
            pause = Hold(asyncio.Event(), asyncio.Event())
            h = OverQueue(kit, thread, [[pause]])
            await h.own()
            if running:
                task = asyncio.create_task(h.serve())
                await pause.reached.wait()
                await kit.submit(thread, Shutdown())
                h.channel.wake()
            else:
                await kit.submit(thread, Shutdown())
                task = asyncio.create_task(h.serve())
            assert await task is SessionOutcome.CLOSED
            assert [e.type for e in await h.events()][-1] == "thread_closed"
            assert (await kit.core.thread_state(thread)).status == "closed"

    asyncio.run(main())
