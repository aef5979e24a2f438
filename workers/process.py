"""The worker of this process: made when Celery's worker starts, gone when it ends."""

import asyncio
import logging
from dataclasses import dataclass

from patchyard.settings import Settings

from .bridge import Bridge
from .maintenance import Maintenance
from .parts import Parts
from .runner import Runner
from .wiring import build

log = logging.getLogger(__name__)

_current: "Worker | None" = None


@dataclass
class Worker:
    """Bridge, parts and what runs on them."""

    bridge: Bridge
    parts: Parts
    runner: Runner
    maintenance: Maintenance

    async def close(self) -> None:
        """Hand all threads over and give everything back."""
        await self.runner.suspend_all()
        await self.maintenance.stop()
        await self.runner.stop()
        await self.parts.close()


def start(settings: Settings) -> Worker:
    """Open this process's worker. Whatever keeps it from working is raised, and nothing is left running then."""
    global _current
    bridge = Bridge()
    bridge.start()
    try:
        _current = bridge.run(_open(bridge, settings))
    except BaseException:
        bridge.stop()
        raise
    return _current


async def _open(bridge: Bridge, settings: Settings) -> Worker:
    parts = await asyncio.to_thread(build, settings)
    try:
        await parts.open()
    except BaseException:
        await parts.close()
        raise
    runner = Runner(parts)
    maintenance = Maintenance(parts)
    runner.start()
    maintenance.start()
    return Worker(bridge, parts, runner, maintenance)


def current() -> Worker:
    """The open worker. RuntimeError outside of a Celery worker."""
    if _current is None:
        raise RuntimeError("no worker is open in this process; start it with `celery -A workers.app worker`")
    return _current


def begin_drain() -> None:
    """Start to hand threads over. Safe in a signal handler; does not wait."""
    worker = _current
    if worker is not None:
        worker.bridge.call_soon(lambda: asyncio.ensure_future(worker.runner.suspend_all()))


def stop(timeout_s: float = 8.0) -> None:
    """Close the worker of this process. Twice is harmless."""
    global _current
    worker, _current = _current, None
    if worker is None:
        return
    try:
        worker.bridge.run(worker.close(), timeout_s=timeout_s)
    except TimeoutError:
        log.error("the worker did not close in %.0f s; the reapers of the others clean up", timeout_s)
    worker.bridge.stop()
    worker.parts.observability.shutdown()
