"""The same limits within one process, for the time in which the shared ones can't be asked."""

import asyncio
import time
from dataclasses import dataclass, field

BURST_MIN = 1 / 6
"""Minutes' worth that may go out at once after a quiet time; as in budget.lua."""


@dataclass
class Limits:
    """Of one provider. None: no limit."""

    concurrency: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


@dataclass
class _Bucket:
    level: float | None = None
    at: float = 0.0

    def wait_s(self, wanted: float, per_minute: int) -> float:
        """Seconds until it holds enough; more than it can hold is let through when it is full."""
        now, full = time.monotonic(), max(1.0, per_minute * BURST_MIN)
        self.level = full if self.level is None else min(full, self.level + (now - self.at) * per_minute / 60)
        self.at = now
        return max(0.0, (min(wanted, full) - self.level) * 60 / per_minute)

    def take(self, amount: float) -> None:
        """May leave a debt."""
        self.level = (self.level or 0.0) - amount


@dataclass
class _Provider:
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by whoever is first in line; asyncio's lock keeps the order."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    held: int = 0
    paused_until: float = 0.0
    requests: _Bucket = field(default_factory=_Bucket)
    tokens: _Bucket = field(default_factory=_Bucket)

    def wait_s(self, tokens: int, limits: Limits) -> float | None:
        """Seconds until the first in line may go; None: until somebody leaves."""
        wait = max(0.0, self.paused_until - time.monotonic())
        if limits.requests_per_minute is not None:
            wait = max(wait, self.requests.wait_s(1, limits.requests_per_minute))
        if limits.tokens_per_minute is not None:
            wait = max(wait, self.tokens.wait_s(tokens, limits.tokens_per_minute))
        full = limits.concurrency is not None and self.held >= limits.concurrency
        return None if full and wait == 0 else wait


class LocalLimits:
    """Fair, without polling. Belongs to one event loop."""

    def __init__(self) -> None:
        self._providers: dict[str, _Provider] = {}

    async def enter(self, provider: str, tokens: int, limits: Limits) -> None:
        """Wait for a turn. Cancel-safe."""
        state = self._of(provider)
        async with state.turn:
            while (wait := state.wait_s(tokens, limits)) is None or wait > 0:
                state.left.clear()
                try:
                    async with asyncio.timeout(wait):
                        await state.left.wait()
                except TimeoutError:
                    continue
            state.held += 1
            state.requests.take(1)
            state.tokens.take(tokens)

    def leave(self, provider: str, more: int) -> None:
        """Give the place back; `more` tokens than were asked for."""
        state = self._of(provider)
        state.held -= 1
        state.tokens.take(more)
        state.left.set()

    def pause(self, provider: str, seconds: float) -> None:
        """Nobody enters for so long."""
        state = self._of(provider)
        state.paused_until = max(state.paused_until, time.monotonic() + seconds)

    def _of(self, provider: str) -> _Provider:
        return self._providers.setdefault(provider, _Provider())
