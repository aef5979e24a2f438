"""The workers' own hand on the bell, and the lease of who does the upkeep. Both live in the broker."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from celery import Celery
from kombu.exceptions import OperationalError

from patchyard.adapters.queue.broker import KEY_PREFIX, RUN_NEXT_TURN, TURNS
from patchyard.settings import Settings
from workers.broker import configuration

T = TypeVar("T")

_LEADER = "maintenance-leader"


class BellSilent(Exception):
    """The broker can't be reached. The pump tries again in a second."""


class Doorbell:
    """Rings for workers. kombu blocks, so it lives on a thread of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._app: Celery | None = None
        self._connection: Any = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="doorbell")

    async def ring(self, times: int) -> None:
        """Ring so often. BellSilent."""
        await self._call(lambda: self._ring(times))

    async def waiting(self) -> int:
        """Bells that no worker has heard yet. BellSilent."""
        return await self._call(self._waiting)

    async def lead(self, worker_id: str, ttl_s: float) -> bool:
        """Take or renew the lease of the upkeep; False: another process has it. BellSilent."""
        return await self._call(lambda: self._lead(worker_id, int(ttl_s * 1000)))

    async def step_down(self, worker_id: str) -> None:
        """Give the upkeep to whoever wants it. BellSilent."""
        await self._call(lambda: self._step_down(worker_id))

    async def close(self) -> None:
        """Drop the connection. Twice is harmless."""
        try:
            await self._call(self._disconnect)
        except (BellSilent, RuntimeError):
            pass
        self._thread.shutdown(wait=False)

    async def _call(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except self._broker_errors() as error:
            self._connection = None
            raise BellSilent(str(error)) from error

    def _broker_errors(self) -> tuple[type[Exception], ...]:
        """What this broker raises when it is away; the transport's library is kombu's affair."""
        connection = self._connection
        own = () if connection is None else (*connection.connection_errors, *connection.channel_errors)
        return (OperationalError, OSError, *own)

    def _channel(self) -> Any:
        if self._app is None:
            self._app = Celery("patchyard-bell", set_as_current=False)
            self._app.conf.update(configuration(self._settings))
        if self._connection is None:
            self._connection = self._app.connection_for_write(connect_timeout=2)
        return self._connection.default_channel

    def _ring(self, times: int) -> None:
        self._channel()
        assert self._app is not None  # noqa: S101 - `_channel` made it
        for _ in range(times):
            self._app.send_task(RUN_NEXT_TURN, queue=TURNS, ignore_result=True, retry=False, connection=self._connection)

    def _waiting(self) -> int:
        return int(self._channel()._size(TURNS))

    def _lead(self, worker_id: str, ttl_ms: int) -> bool:
        redis = self._channel().client
        if redis.set(_LEADER, worker_id, nx=True, px=ttl_ms):
            return True
        if not _is_mine(redis, worker_id):
            return False
        redis.set(_LEADER, worker_id, xx=True, px=ttl_ms)
        return True

    def _step_down(self, worker_id: str) -> None:
        redis = self._channel().client
        if _is_mine(redis, worker_id):
            redis.delete(_LEADER)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.release()
        if self._app is not None:
            self._app.close()


def _is_mine(redis: Any, worker_id: str) -> bool:
    # kombu puts its prefix before the keys of SET and DEL, but not of GET.
    held = redis.get(f"{KEY_PREFIX}{_LEADER}") or redis.get(_LEADER)
    return held in (worker_id, worker_id.encode())
