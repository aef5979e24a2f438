"""Sessions over the queue's own channel: what the in-memory channel promises, the real one keeps."""

import asyncio
import contextlib
from dataclasses import replace

import pytest

from patchyard.agent.ports import LeaseLost
from patchyard.agent.session import SessionOutcome
from patchyard.protocol.ids import new_id
from patchyard.protocol.ops import (
    ApprovalDecision,
    CleanBackgroundTerminals,
    ExecApproval,
    Interrupt,
    Review,
    RunUserShellCommand,
    Shutdown,
)
from patchyard.rollout import decode_line, restore
from patchyard.testing.builders import response, says, shell
from patchyard.testing.clock import FakeClock
from patchyard.testing.harness import AgentHarness
from patchyard.testing.scripted_model import Hold
from patchyard.testing.scripted_sandbox import Command
from tests.conformance.queue.conftest import backend, server_urls  # noqa: F401
from tests.conformance.queue.kit import Kit, say, until
from tests.conformance.queue.kit import kit as opened
from tests.waiting import WAIT_S


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
            return await asyncio.wait_for(self.session.run(), WAIT_S)
        except LeaseLost:
            return None

    async def lines(self):
        return [decode_line(line.json) for line in await self.kit.core.read_lines(self.thread, after=None, limit=1000)]

    async def interrupted(self):
        return "turn_interrupted" in [e.type for e in await self.events()]

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


def test_an_interrupt_that_meets_the_turns_last_record_is_answered(backend):  # noqa: F811
    async def main():
        async with opened(backend) as kit:
            thread = new_id()
            await kit.submit(thread, say("fix it"))
            h = OverQueue(kit, thread, [says("done")])
            await h.own()
            late = []
            finish = h.channel.finish_turn

            async def finish_turn(payloads, **fields):
                late.append(await kit.submit(thread, Interrupt()))
                return await finish(payloads, **fields)

            h.channel.finish_turn = finish_turn
            await h.serve()
            with contextlib.suppress(LeaseLost):  # the session may leave before it sees it: whoever comes next answers
                await h.channel.hand_over()
            if (await kit.core.thread_state(thread)).status == "queued":
                await h.own("w2")
                await h.serve()
            (stop,) = late
            answers = [line.payload.type for line in await h.lines() if line.submission_id == stop.submission_id]
            assert answers == ["op_rejected"]
            assert "turn_completed" in [e.type for e in await h.events()]
            state = await kit.core.thread_state(thread)
            assert (state.active_turn_id, state.waiting) == (None, 0)

    asyncio.run(main())


def test_a_persons_command_runs_after_the_turn_under_its_own_id(backend):  # noqa: F811
    async def main():
        async with opened(backend) as kit:
            thread = new_id()
            await kit.submit(thread, say("fix it"))
            pause = Hold(asyncio.Event(), asyncio.Event())
            h = OverQueue(kit, thread, [[pause, *says("done")]], commands=[Command("ls", b"a.py")])
            await h.own()
            task = asyncio.create_task(h.serve())
            await pause.reached.wait()
            own = await kit.submit(thread, RunUserShellCommand(command="ls"))
            refused = await kit.submit(thread, Review())
            assert refused.admission.type == "not_submitted"
            h.channel.wake()
            await h.until(lambda: h.session._turn.state.later)
            pause.until.set()
            await task
            turns = [
                line.turn_id for line in await h.lines() if line.type == "event_msg" and line.payload.type == "turn_completed"
            ]
            assert turns[1:] == [own.submission_id]
            assert (await kit.core.thread_state(thread)).status == "idle"

    asyncio.run(main())


def test_commands_left_running_keep_the_lease_until_they_are_cleaned_up(backend):  # noqa: F811
    async def main():
        async with opened(backend) as kit:
            thread = new_id()
            await kit.submit(thread, say("fix it"))
            pause = Hold(asyncio.Event(), asyncio.Event())
            serve = Command("serve", b"up", hangs=True)
            h = OverQueue(kit, thread, [response(shell("serve", "c1", yield_time_ms=250)), [pause]], commands=[serve])
            await h.own()
            task = asyncio.create_task(h.serve())
            await asyncio.wait_for(serve.started.wait(), WAIT_S)
            await h.until(lambda: 0.25 in h.clock.slept)
            await h.clock.advance(0.3)
            await asyncio.wait_for(pause.reached.wait(), WAIT_S)
            await kit.submit(thread, Interrupt(keep_background=True))
            h.channel.wake()
            await until(h.interrupted)
            state = await kit.core.thread_state(thread)
            assert (state.status, state.active_turn_id, state.worker) == ("running", None, "w1")
            clean = await kit.submit(thread, CleanBackgroundTerminals())
            h.channel.wake()
            assert await task is SessionOutcome.IDLE
            answers = [line.payload.type for line in await h.lines() if line.submission_id == clean.submission_id]
            assert answers == ["op_applied"]
            assert h.box.processes[0].killed_with == 9

    asyncio.run(main())
