"""Time that tests move."""

import asyncio
import heapq
import itertools
from collections.abc import Callable


class FakeClock:
    """Clock double. `auto`: whenever nothing else can run, time jumps to the next sleeper; else only `advance` moves it."""

    def __init__(self, *, now_ms: int = 1_790_000_000_000, auto: bool = True) -> None:
        self._start_ms = now_ms
        self._now = 0.0
        self._auto = auto
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = itertools.count()
        self._ticker: asyncio.Task[None] | None = None
        self.slept: list[float] = []
        """Every sleep that was asked for, in seconds."""

    def now_ms(self) -> int:
        """See Clock."""
        return self._start_ms + round(self._now * 1000)

    def monotonic(self) -> float:
        """See Clock."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """See Clock."""
        self.slept.append(seconds)
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._count), future))
        if self._auto and (self._ticker is None or self._ticker.done()):
            self._ticker = asyncio.create_task(self._tick())
        await future

    async def advance(self, seconds: float) -> None:
        """Move time on, waking sleepers on the way, and let everything run that became able to."""
        if self._auto:
            raise AssertionError("this clock moves by itself; make it with auto=False to move it by hand")
        target = self._now + seconds
        await settle()
        while (next_at := self._next()) is not None and next_at <= target:
            self._wake(next_at)
            await settle()
        self._now = target
        await settle()

    def _next(self) -> float | None:
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    def _wake(self, at: float) -> None:
        self._now = max(self._now, at)
        while (next_at := self._next()) is not None and next_at <= at:
            heapq.heappop(self._sleepers)[2].set_result(None)

    async def _tick(self) -> None:
        while self._next() is not None:
            await _nothing_else_runs()
            next_at = self._next()
            if next_at is not None:
                self._wake(next_at)


class _Loops:
    """Who watches the loop for quiet: watchers are always ready themselves and must not wait for each other."""

    tickers = 0
    settlers = 0


async def settle() -> None:
    """Let other tasks run until all of them wait for something that does not come by itself. Time stands still meanwhile."""
    _Loops.settlers += 1
    try:
        await _quiet(lambda ready: ready <= _Loops.tickers + _Loops.settlers - 1)
    finally:
        _Loops.settlers -= 1


async def _nothing_else_runs() -> None:
    _Loops.tickers += 1
    try:
        await _quiet(lambda ready: not _Loops.settlers and ready <= _Loops.tickers - 1)
    finally:
        _Loops.tickers -= 1


async def _quiet(holds: Callable[[int], bool]) -> None:
    ready = getattr(asyncio.get_running_loop(), "_ready")  # noqa: B009 - asyncio has no public way to ask
    rounds = 0
    while rounds < 3:
        await asyncio.sleep(0)
        rounds = rounds + 1 if holds(len(ready)) else 0
