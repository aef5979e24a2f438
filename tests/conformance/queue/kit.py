"""Short words for tests of the queue: one core, threads, submissions and channels."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from patchyard.adapters.queue import (
    Backend,
    Claim,
    ParentTurn,
    QueueCore,
    QueueThreadChannel,
    QueueUnavailable,
    ThreadRegistration,
)
from patchyard.adapters.queue._backend import Reply, ScriptName, StreamBounds, StreamEntry
from patchyard.adapters.queue._redis import RedisBackend
from patchyard.protocol import events, ops
from patchyard.protocol.errors import NotSubmittedReason
from patchyard.protocol.ids import new_id
from patchyard.protocol.model_items import TokenUsage
from patchyard.protocol.ops import Admission, Submission, SubmissionReceipt
from patchyard.testing.queue import MemoryBackend
from tests.waiting import WAIT_S


@dataclass
class Unreliable:
    """A server whose next calls fail before they are done, or whose answers get lost after they are done."""

    inner: Backend
    refuse: int = 0
    lose: int = 0
    only: ScriptName | None = None
    read: set[str] = field(default_factory=set)
    """Streams that somebody has begun to read."""

    async def run(
        self, script: ScriptName, args: Mapping[str, Any], blobs: Sequence[bytes] = (), *, retry: bool = True
    ) -> Reply:
        if self.only in (None, script):
            if self.refuse > 0:
                self.refuse -= 1
                raise QueueUnavailable("refused by the test")
            if self.lose > 0:
                self.lose -= 1
                await self.inner.run(script, args, blobs, retry=retry)
                raise QueueUnavailable("answer lost by the test")
        return await self.inner.run(script, args, blobs, retry=retry)

    async def read_stream(self, name: str, after: str, *, count: int, block_ms: int) -> Sequence[StreamEntry]:
        self.read.add(name)
        return await self.inner.read_stream(name, after, count=count, block_ms=block_ms)

    async def bounds(self, name: str) -> StreamBounds:
        return await self.inner.bounds(name)

    async def server_facts(self) -> Mapping[str, str]:
        return await self.inner.server_facts()

    async def close(self) -> None:
        await self.inner.close()


def say(text: str = "hello", **fields: Any) -> ops.TurnInput:
    return ops.TurnInput(items=(ops.TextInput(text=text),), **fields)


def started(model: str = "m") -> events.TurnStarted:
    return events.TurnStarted(model=model, submitted_at=1, started_at=2)


def completed() -> events.TurnCompleted:
    return events.TurnCompleted(usage=TokenUsage(), model_requests=1, tool_calls=0, duration_ms=1)


def interrupted(*dropped: str) -> events.TurnInterrupted:
    return events.TurnInterrupted(usage=TokenUsage(), dropped_submission_ids=dropped)


def delta(text: str, item: str = "msg") -> events.AgentMessageDelta:
    return events.AgentMessageDelta(item_id=item, delta=text)


def refused(reason: NotSubmittedReason, active: str | None = None) -> Admission:
    return ops.NotSubmitted(reason=reason, active_turn_id=active)


@dataclass
class Kit:
    """One core over one server."""

    core: QueueCore
    server: Unreliable
    tenant: str = "default"

    def submission(self, thread: str, op: ops.Op, *, key: str | None = None, tenant: str | None = None) -> Submission:
        return Submission(
            id=new_id(),
            tenant_id=tenant or self.tenant,
            thread_id=thread,
            op=op,
            idempotency_key=key,
            submitted_at=time.time_ns() // 1_000_000,
        )

    async def submit(
        self,
        thread: str,
        op: ops.Op,
        *,
        key: str | None = None,
        tenant: str | None = None,
        repository: str = "",
        task: str | None = None,
        priority: int = 5,
        parent: ParentTurn | None = None,
    ) -> SubmissionReceipt:
        registration = ThreadRegistration(task_id=task, repository=repository, spec_json="{}", title="a title", parent=parent)
        submission = self.submission(thread, op, key=key, tenant=tenant)
        return await self.core.submit(submission, registration=registration, priority=priority)

    async def claim(self, worker: str = "w1") -> Claim:
        claim = await self.core.claim(worker)
        assert claim is not None
        return claim

    async def channel(self, worker: str = "w1") -> QueueThreadChannel:
        return QueueThreadChannel(self.core, await self.claim(worker))

    async def running(self, **fields: Any) -> "Running":
        """A thread whose turn runs in this test."""
        thread = new_id()
        receipt = await self.submit(thread, say(), **fields)
        channel = await self.channel()
        first = await channel.receive()
        await channel.commit([started()], turn_id=first.id, submission_id=first.id, consumed=[first.id])
        return Running(thread, receipt.submission_id, channel)

    async def event_types(self, thread: str) -> list[str]:
        from patchyard.adapters.streams import frame_of_line

        lines = await self.core.read_lines(thread, after=None, limit=10_000)
        frames = [frame_of_line("t", thread, line.ordinal, line.json) for line in lines]
        return [frame.type for frame in frames if frame is not None]

    async def expire(self, *threads: str) -> None:
        """The leases of these threads have ended, as if their time were over."""
        match self.server.inner:
            case MemoryBackend() as memory:
                memory._leases.update(dict.fromkeys(threads, 0))
            case RedisBackend() as server:
                await server._redis.zadd("py:{0}:leases", dict.fromkeys(threads, 1), xx=True)
            case other:
                raise AssertionError(f"no such backend: {other}")

    async def reap(self) -> list[str]:
        """One round of the reaper, on a server that has been up for long."""
        reply = await self.server.run("reap", {"ttl": 0, "limit": 100})
        return [thread.decode() for thread in reply[1]]

    async def lose(self, thread: str) -> None:
        """The worker of this thread is silent for longer than its lease, and the reaper takes the thread away."""
        await self.expire(thread)
        assert await self.reap() == [thread]


@dataclass
class Running:
    thread: str
    turn: str
    channel: QueueThreadChannel


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a server's clock, which no test can turn."""
    async with asyncio.timeout(WAIT_S):
        while not await condition():
            await asyncio.sleep(0.02)


MakeBackend = Callable[[], Backend]


@asynccontextmanager
async def kit(make_backend: MakeBackend, **settings: Any) -> AsyncIterator[Kit]:
    server = Unreliable(make_backend())
    core = QueueCore("test:", backend=server, **settings)
    await core.open()
    try:
        yield Kit(core, server)
    finally:
        await core.close()


def backend_maker(url: str) -> MakeBackend:
    """A maker of backends that share one server: of the memory, or of the URL."""
    if url == "memory:":
        memory = MemoryBackend()
        return lambda: memory
    return lambda: RedisBackend(url)
