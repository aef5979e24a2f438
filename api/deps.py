"""Composition root of the API: the parts it stands on, opened and closed in one place."""

import asyncio
import logging
from dataclasses import dataclass, field

from fastapi import Request

from observability import Observability, setup
from patchyard import __version__
from patchyard.adapters.catalog import Catalog, CatalogError
from patchyard.adapters.queue import QueueCore, QueueUnavailable
from patchyard.adapters.store import OpenStore, open_store
from patchyard.adapters.streams import EventHub
from patchyard.settings import Settings

from .auth import TokenBook
from .desk import TaskDesk
from .doorbell import CeleryDoorbell, Doorbell
from .failures import KNOWN
from .models import ModelBook
from .records import Records
from .watching import Watching

log = logging.getLogger(__name__)

_SWEEP_EVERY_S = 5.0
_CLOSE_S = 3.0
"""Longest wait for one part at shutdown."""


class StartRefused(Exception):
    """The service must not start like this; the message says what is wrong and what to do."""


@dataclass
class Deps:
    """Everything that routes use."""

    settings: Settings
    queue: QueueCore
    catalog: Catalog
    store: OpenStore
    hub: EventHub
    doorbell: Doorbell
    tokens: TokenBook
    desk: TaskDesk
    records: Records
    watching: Watching
    models: ModelBook
    observability: Observability
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process is told to stop: event streams end, so that it can."""
    _sweeper: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect. A part that is away is reported by /readyz and waited for; one that is set up wrongly is StartRefused."""
        try:
            await self.queue.open()
            await self._check_queue()
        except QueueUnavailable as error:
            log.warning("the queue does not answer yet: %s", error)
        try:
            await self.catalog.migrate()
        except CatalogError as error:
            if not error.retryable:
                raise StartRefused(error.info.message) from error
            log.warning("the catalog does not answer yet: %s", error)
        await self.hub.open()
        self._sweeper = asyncio.create_task(self._sweep())

    async def _check_queue(self) -> None:
        health = await self.queue.check()
        for problem in health.problems:
            log.warning("Redis: %s; %s", problem.problem, problem.remedy)
        if not health.usable:
            found = "; ".join(f"{problem.problem} ({problem.remedy})" for problem in health.problems)
            raise StartRefused(
                f"This Redis could lose accepted work: {found}. For development only: PATCHYARD_ALLOW_VOLATILE_REDIS=true."
            )

    async def close(self) -> None:
        """Give everything back. A part that hangs is left behind after a moment: the process must end."""
        self.stopping.set()
        steps = [self.hub.close, self._end_sweeper, self.desk.close, lambda: asyncio.to_thread(self.doorbell.close)]
        steps.append(lambda: asyncio.to_thread(self.observability.shutdown))
        for step in [*steps, self.queue.close, self.catalog.close, self.store.close]:
            try:
                async with asyncio.timeout(_CLOSE_S):
                    await step()
            except TimeoutError:
                log.warning("a part did not close within %.0f s", _CLOSE_S)

    async def _end_sweeper(self) -> None:
        if self._sweeper is not None:
            await self._sweeper

    async def _sweep(self) -> None:
        """Until `stopping`: never cut off in the middle of a submission."""
        while not self.stopping.is_set():
            try:
                async with asyncio.timeout(_SWEEP_EVERY_S):
                    await self.stopping.wait()
            except TimeoutError:
                await self._sweep_once()

    async def _sweep_once(self) -> None:
        try:
            swept = await self.desk.sweep()
        except KNOWN as error:
            log.warning("could not look for tasks that were left half-way: %s", error)
        else:
            if swept:
                log.warning("submitted %d task(s) that an API process had left half-way", swept)


def build(settings: Settings, *, doorbell: Doorbell | None = None) -> Deps:
    """The parts for these settings; nothing is contacted yet. StartRefused: a setting can't be used."""
    try:
        catalog = Catalog(settings.effective_catalog_url)
        store = open_store(settings.effective_store_url, endpoint_url=settings.s3_endpoint_url)
    except KNOWN as error:
        raise StartRefused(error.info.message) from error
    queue = QueueCore(
        settings.effective_redis_url,
        lease_ttl_s=settings.lease_ttl_s,
        tenant_cap=settings.tenant_cap,
        repository_cap=settings.repository_cap,
        allow_volatile=settings.allow_volatile_redis,
    )
    return assemble(settings, queue=queue, catalog=catalog, store=store, doorbell=doorbell)


def assemble(
    settings: Settings, *, queue: QueueCore, catalog: Catalog, store: OpenStore, doorbell: Doorbell | None = None
) -> Deps:
    """The parts over given adapters; tests pass doubles."""
    bell = doorbell or CeleryDoorbell(settings.effective_redis_url)
    records = Records(queue, store)
    hub = EventHub(queue, history=records.history)
    return Deps(
        settings=settings,
        queue=queue,
        catalog=catalog,
        store=store,
        hub=hub,
        doorbell=bell,
        tokens=TokenBook(catalog, settings.effective_token()),
        desk=TaskDesk(queue, catalog, bell),
        records=records,
        watching=Watching(queue, hub, records),
        models=ModelBook(settings),
        observability=setup(settings, "api", version=__version__, logs=False),
    )


def deps_of(request: Request) -> Deps:
    """The parts behind a request."""
    deps: Deps = request.app.state.deps
    return deps
