"""Rings for a worker. A bell only shortens the wait: the queue's ready set is the truth, and the workers' pump rings again."""

import logging
import queue
import threading
from typing import Any, Protocol

from patchyard.adapters.queue.broker import KEY_PREFIX, RUN_NEXT_TURN, TURNS, broker_url

log = logging.getLogger(__name__)

_MAX_WAITING = 1000
"""Bells that wait for the broker. More are not needed: so many are enough to wake every worker."""


class Doorbell(Protocol):
    """Wakes a worker. Implementers: CeleryDoorbell, tests' silent one."""

    def ring(self) -> None:
        """Say that a thread may be ready. Never blocks, never fails."""
        ...

    def close(self) -> None:
        """Ring what waits and stop. Twice is harmless."""
        ...


class CeleryDoorbell:
    """Sends the bell as a Celery task by name, from a thread of its own: kombu blocks, and the broker may be away."""

    def __init__(self, redis_url: str) -> None:
        self._redis_url = redis_url
        self._bells: queue.Queue[bool] = queue.Queue(_MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._failing = False

    def ring(self) -> None:
        """See Doorbell.ring."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._serve, name="doorbell", daemon=True)
            self._thread.start()
        try:
            self._bells.put_nowait(True)
        except queue.Full:
            return

    def close(self) -> None:
        """See Doorbell.close."""
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                self._bells.put(False, timeout=1)
            except queue.Full:
                return
            thread.join(timeout=2)

    def _serve(self) -> None:
        # Imported by the thread at its first bell: Celery takes a third of a second that no start-up should wait for.
        from kombu.exceptions import OperationalError

        app = _make_app(self._redis_url)
        transport = app.connection_for_write().transport
        outages = (OSError, OperationalError, *transport.connection_errors, *transport.channel_errors)
        try:
            while self._bells.get():
                self._send(app, outages)
        finally:
            app.close()

    def _send(self, app: Any, outages: tuple[type[Exception], ...]) -> None:
        try:
            app.send_task(RUN_NEXT_TURN, queue=TURNS, ignore_result=True, retry=False)
        except outages as error:
            if not self._failing:
                log.warning("the doorbell is out of order, tasks start up to a second later: %s", error)
            self._failing = True
        else:
            self._failing = False


def _make_app(redis_url: str) -> Any:
    from celery import Celery

    app = Celery("patchyard-api")
    app.conf.update(
        broker_url=broker_url(redis_url),
        broker_transport_options={"global_keyprefix": KEY_PREFIX, "socket_timeout": 5, "socket_connect_timeout": 2},
        broker_connection_timeout=2,
        task_ignore_result=True,
        task_serializer="json",
        task_default_queue=TURNS,
    )
    return app
