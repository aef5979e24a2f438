"""Upkeep inside a worker: one leader pumps, reaps, stores and projects; every process looks after its own machine."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from observability import Metric
from patchyard.adapters.catalog import CatalogError
from patchyard.adapters.queue import QueueError
from patchyard.adapters.sandbox import BoxLabels
from patchyard.adapters.store import StoreError
from patchyard.adapters.workspace import WorkspaceError
from patchyard.agent.ports import SandboxError
from workers.parts import Parts

from .doorbell import BellSilent, Doorbell
from .projection import Projection

log = logging.getLogger(__name__)

PUMP_EVERY_S = 1.0
PROJECT_EVERY_S = 0.2
"""How far lists are behind what is committed."""
LEADER_TTL_S = 3.0
HOUSE_EVERY_S = 15.0
"""Own machine: containers and folders without an owner are gone within a minute."""
MAX_BELLS = 200
"""Bells that may wait at once; more would only be heard by workers that find nothing."""

_EXPECTED = (QueueError, BellSilent, StoreError, CatalogError, SandboxError, WorkspaceError)
"""Parts that may be away; each round tries again."""


class Maintenance:
    """One per process, on its loop."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._bell = Doorbell(parts.settings)
        self._projection = Projection(parts.queue, parts.store, parts.catalog, parts.observability.metrics)
        self._leader = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin all loops."""
        self._tasks = [
            asyncio.create_task(self._repeat(self._lead_and_pump, PUMP_EVERY_S), name="pump"),
            asyncio.create_task(self._repeat(self._project, PROJECT_EVERY_S), name="projection"),
            asyncio.create_task(self._repeat(self.keep_house, HOUSE_EVERY_S), name="house"),
        ]

    async def stop(self) -> None:
        """End all loops and let another process lead."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._leader:
            self._leader = False
            try:
                async with asyncio.timeout(0.5):
                    await self._bell.step_down(self._parts.worker_id)
            except (BellSilent, TimeoutError):
                pass  # the lease of the upkeep ends by itself
        await self._bell.close()

    async def round(self) -> None:
        """Everything once, whoever leads."""
        await self.pump()
        await self._projection.round(now_ms=self._parts.clock.now_ms())
        await self.keep_house()

    async def pump(self) -> None:
        """Reap leases of silent workers, and ring for threads that are ready and that nobody was rung for."""
        result = await self._parts.queue.reap()
        for thread_id in result.reaped:
            log.warning("thread %s lost its worker and is ready again", thread_id)
        self._parts.observability.metrics.add(Metric.QUEUE_DEPTH, result.ready)
        if result.ready:
            bells = min(result.ready, MAX_BELLS) - await self._bell.waiting()
            if bells > 0:
                await self._bell.ring(bells)

    async def keep_house(self) -> None:
        """Remove containers and folders of this machine that no living worker owns."""
        removed = await self._parts.engine.reap(self._is_alive)
        if removed:
            log.warning("removed %d container(s) that had no owner", len(removed))
        swept = await self._parts.workspaces.sweep(self._is_wanted)
        if swept:
            log.info("removed %d abandoned work tree(s)", swept)

    async def _is_alive(self, labels: BoxLabels) -> bool:
        if labels.worker == self._parts.worker_id:
            return True  # being started or removed here
        state = await self._parts.queue.thread_state(labels.thread)
        return state is not None and state.worker == labels.worker

    async def _is_wanted(self, thread_id: str) -> bool:
        state = await self._parts.queue.thread_state(thread_id)
        return state is not None and state.active_turn_id is not None

    async def _lead_and_pump(self) -> None:
        leads = await self._bell.lead(self._parts.worker_id, LEADER_TTL_S)
        if leads and not self._leader:
            log.info("this worker leads the upkeep")
        self._leader = leads
        if leads:
            await self.pump()

    async def _project(self) -> None:
        if self._leader:
            await self._projection.round(now_ms=self._parts.clock.now_ms())

    async def _repeat(self, work: Callable[[], Awaitable[None]], every_s: float) -> None:
        failing = False
        while True:
            try:
                await work()
                failing = False
            except _EXPECTED as error:
                if not failing:
                    log.warning("upkeep waits: %s", error)
                failing = True
            except Exception:
                # A fault in one round must not end the upkeep of a fleet.
                log.exception("a round of upkeep failed")
            await asyncio.sleep(every_s)
