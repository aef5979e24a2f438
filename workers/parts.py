"""All that a worker process stands on, as one object. Made in wiring."""

import asyncio
import logging
import time
from dataclasses import dataclass

from observability import Observability
from patchyard.adapters.catalog import Catalog
from patchyard.adapters.model import ModelTransport, ProviderBook
from patchyard.adapters.queue import QueueCore
from patchyard.adapters.queue.budgets import ProviderBudgets
from patchyard.adapters.sandbox import DockerBoxes
from patchyard.adapters.store import OpenStore
from patchyard.adapters.workspace import WorkspaceManager
from patchyard.agent.redact import Redactor
from patchyard.settings import Settings

from .running.artefacts import Artefacts
from .running.boxes import BoxParts

log = logging.getLogger(__name__)

CLOSE_S = 0.5
"""What each part may take of the two seconds in which a worker goes."""


class StartRefused(Exception):
    """The worker does not start; the message says what to change."""


class SystemClock:
    """agent.ports.Clock."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


@dataclass
class Parts:
    """All that a worker process stands on."""

    settings: Settings
    worker_id: str
    queue: QueueCore
    store: OpenStore
    catalog: Catalog
    engine: DockerBoxes
    workspaces: WorkspaceManager
    boxes: BoxParts
    artefacts: Artefacts
    providers: ProviderBook
    budgets: ProviderBudgets
    transport: ModelTransport
    observability: Observability
    redactor: Redactor
    secrets: tuple[str, ...]
    """Values that must never leave the process."""
    clock: SystemClock

    async def open(self) -> None:
        """Connect what a worker can't start without. StartRefused, QueueUnavailable, WorkspaceError."""
        await asyncio.to_thread(self.workspaces.open)
        await self.queue.open()
        health = await self.queue.check()
        for problem in health.problems:
            log.warning("Redis: %s; %s", problem.problem, problem.remedy)
        if not health.usable:
            found = "; ".join(f"{problem.problem} ({problem.remedy})" for problem in health.problems)
            raise StartRefused(
                f"This Redis could lose accepted work: {found}. For development only: PATCHYARD_ALLOW_VOLATILE_REDIS=true."
            )

    async def close(self) -> None:
        """Give everything back. What takes long ends by itself: boxes with their stream, folders by the next sweep."""
        connections = (self.transport.aclose, self.budgets.close, self.queue.close, self.catalog.close)
        for part in (self.engine.close, self.workspaces.close, *connections):
            try:
                async with asyncio.timeout(CLOSE_S):
                    await part()
            except TimeoutError:
                log.info("not waited for: %s", part.__qualname__)
        await self.store.close()
