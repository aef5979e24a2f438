"""Runs claimed threads: beats for their leases, gives each a session, and hands all of them over when the process has to go."""

import asyncio
import logging
from dataclasses import dataclass

from observability import bind
from patchyard.adapters.queue import Claim, ControlReader, QueueThreadChannel, QueueUnavailable
from patchyard.agent.ports import LeaseLost

from .parts import Parts
from .running.segment import Segment

log = logging.getLogger(__name__)

BEATS_PER_LEASE = 3.75
"""A lease of 30 s is renewed every 8 s: three beats may be lost."""
CLAIM_PAUSE_S = 1.0
"""After a claim that failed for want of Redis."""


@dataclass
class Held:
    """A thread that this process owns."""

    claim: Claim
    segment: Segment
    task: "asyncio.Task[object]"


class Runner:
    """One per process, on its loop."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._held: dict[str, Held] = {}
        self._stopping = False
        self._background: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to beat and to listen for news."""
        reader = ControlReader(self._parts.queue, self._parts.worker_id)
        self._background = [
            asyncio.create_task(self._beat(), name="beat"),
            asyncio.create_task(reader.run(), name="control"),
        ]

    @property
    def running(self) -> int:
        """Threads that run now."""
        return len(self._held)

    async def run_next(self) -> bool:
        """Claim a thread and run it until it needs no worker. False: there was none, or the process is going."""
        if self._stopping:
            return False
        try:
            claim = await self._parts.queue.claim(self._parts.worker_id)
        except QueueUnavailable as error:
            log.warning("nothing was claimed: %s", error)
            await asyncio.sleep(CLAIM_PAUSE_S)
            return False
        if claim is None:
            return False
        with bind(tenant_id=claim.tenant_id, thread_id=claim.thread_id, task_id=claim.task_id, turn_id=claim.active_turn_id):
            await self._run(claim)
        return True

    async def suspend_all(self) -> None:
        """Hand every thread over; returns when all are given up."""
        self._stopping = True
        for held in self._held.values():
            held.segment.suspend()
        tasks = [held.task for held in self._held.values()]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def stop(self) -> None:
        """End the background work. Call after `suspend_all`."""
        self._stopping = True
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._background = []

    async def _run(self, claim: Claim) -> None:
        channel = QueueThreadChannel(self._parts.queue, claim)
        segment = Segment(self._parts, claim, channel)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - coroutines always run in a task
        self._held[claim.thread_id] = Held(claim, segment, task)
        if self._stopping:
            segment.suspend()
        try:
            await segment.run()
        except LeaseLost:
            log.info("the thread belongs to another worker now")
        except Exception:
            # The boundary of a claim: one broken thread must not take the worker's other 199 turns with it.
            log.exception("a thread could not be run; its lease will end and another worker tries")
        finally:
            self._held.pop(claim.thread_id, None)

    async def _beat(self) -> None:
        pause = self._parts.settings.lease_ttl_s / BEATS_PER_LEASE
        while True:
            await asyncio.sleep(pause)
            held = {thread_id: held.claim.fence for thread_id, held in self._held.items()}
            try:
                lost = await self._parts.queue.beat(self._parts.worker_id, held)
            except QueueUnavailable as error:
                log.warning("no lease was renewed: %s", error)
                continue
            for thread_id in lost:
                if thread_id not in self._held:
                    continue  # given up by itself while the answer came
                log.warning("the lease of thread %s is lost", thread_id)
