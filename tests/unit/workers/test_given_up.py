"""A turn that can't be run at all is ended by its worker, whatever arrives meanwhile."""

import asyncio
from types import SimpleNamespace
from typing import Any

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace import TracerProvider

from observability import Metrics, Observability
from observability.ids import DerivedIds
from patchyard.adapters.queue import QueueThreadChannel, ThreadRegistration, ThreadStatus
from patchyard.agent.redact import Redactor
from patchyard.protocol.ids import new_id
from patchyard.protocol.ops import Submission, TextInput, TurnInput
from patchyard.testing.queue import MemoryQueueCore
from workers.running.segment import Segment

THREAD = new_id()


def say(text: str) -> Submission:
    op = TurnInput(items=(TextInput(text=text),))
    return Submission(id=new_id(), tenant_id="default", thread_id=THREAD, op=op, submitted_at=1)


class LateSteer(QueueThreadChannel):
    """A steer arrives just before the turn's first end."""

    late: Submission | None = None

    async def finish_turn(self, *args: Any, **fields: Any) -> bool:
        if self.late is None:
            self.late = say("and this")
            await self._core.submit(self.late)
        return await super().finish_turn(*args, **fields)


def parts() -> Any:
    ids = DerivedIds()
    tracer = TracerProvider(id_generator=ids, shutdown_on_exit=False).get_tracer("t")
    return SimpleNamespace(
        observability=Observability(tracer, ids, Metrics(NoOpMeterProvider().get_meter("t"))),
        redactor=Redactor(()),
        clock=SimpleNamespace(now_ms=lambda: 1),
    )


def test_a_steer_that_comes_at_the_last_moment_does_not_leave_the_turn_open() -> None:
    async def run() -> None:
        queue = MemoryQueueCore()
        await queue.submit(say("x"), registration=ThreadRegistration(spec_json="not a specification"))
        claim = await queue.claim("w1")
        assert claim is not None
        await Segment(parts(), claim, LateSteer(queue, claim)).run()
        state = await queue.thread_state(THREAD)
        assert state is not None
        assert (state.status, state.waiting, state.active_turn_id) == (ThreadStatus.IDLE, 0, None)
        lines = [line.json for line in await queue.read_lines(THREAD, after=None, limit=100)]
        assert [b'"turn_failed"' in line for line in lines] == [False] * (len(lines) - 1) + [True]
        assert any(b"and this" in line for line in lines)
        await queue.close()

    asyncio.run(run())
