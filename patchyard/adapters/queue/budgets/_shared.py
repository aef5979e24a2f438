"""Limits shared over all workers through one script. Who waits is woken; nobody polls."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from patchyard.adapters.queue._backend import Backend
from patchyard.adapters.queue.budgets._local import Limits, LocalLimits
from patchyard.adapters.queue.errors import QueueUnavailable

log = logging.getLogger(__name__)

ANSWER_S = 1.0
"""A server that takes longer is slower than the limit is worth: this process then keeps to the limits alone."""
DEGRADED_S = 5.0
"""How long it is not asked then."""
BEAT_S = 20.0
"""A third of the lease of a permit (budget.lua)."""
READ_BLOCK_MS = 2000


@dataclass
class _Permit:
    provider: str
    tokens: int
    local: bool


class ProviderBudgets:
    """Gate of all model requests of a process (adapters.model.limits.Gate). Belongs to one event loop."""

    def __init__(self, backend: Callable[[], Backend], process_id: str, *, answer_s: float = ANSWER_S) -> None:
        """`backend` gives the open server; `process_id` must be unique among all workers."""
        self._backend, self._process, self._answer_s = backend, process_id, answer_s
        self._numbers = itertools.count()
        self._local = LocalLimits()
        self._permits: dict[str, _Permit] = {}
        self._waiting: dict[str, asyncio.Event] = {}
        self._position = "0-0"
        self._degraded_until = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._reader: asyncio.Task[None] | None = None
        self._beater: asyncio.Task[None] | None = None

    async def enter(
        self,
        provider: str,
        *,
        tokens: int,
        concurrency: int | None = None,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
    ) -> str:
        """Wait for a turn and give a permit, in the order of arrival over all workers. Cancel-safe."""
        permit = f"{self._process}:{next(self._numbers)}"
        limits = Limits(concurrency, requests_per_minute, tokens_per_minute)
        local = not await self._enter_shared(permit, provider, tokens, limits)
        if local:
            await self._local.enter(provider, tokens, limits)
        self._permits[permit] = _Permit(provider, tokens, local)
        return permit

    async def leave(self, provider: str, permit: str, *, tokens: int | None) -> None:
        """The request is over; `tokens`: what it did cost. Never raises."""
        held = self._permits.pop(permit, None)
        if held is None:
            return
        more = 0 if tokens is None else tokens - held.tokens
        if held.local:
            self._local.leave(provider, more)
        else:
            await self._tell("leave", provider, permit=permit, more=more)

    async def pause(self, provider: str, seconds: float) -> None:
        """Nobody enters for so long. Never raises."""
        self._local.pause(provider, seconds)
        await self._tell("pause", provider, ms=round(seconds * 1000))

    async def close(self) -> None:
        """Stop the background work. Permits that are still held end with their lease."""
        tasks = [task for task in (*self._tasks, self._reader, self._beater) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _enter_shared(self, permit: str, provider: str, tokens: int, limits: Limits) -> bool:
        """True: granted. False: the server does not answer."""
        if time.monotonic() < self._degraded_until:
            return False
        woken = self._waiting[permit] = asyncio.Event()
        asked = {
            "permit": permit,
            "process": self._process,
            "tokens": tokens,
            "places": limits.concurrency,
            "rpm": limits.requests_per_minute,
            "tpm": limits.tokens_per_minute,
        }
        granted = False
        try:
            while True:
                woken.clear()
                reply = await self._run("enter", provider, **asked)
                if reply is None:
                    return False
                if reply[0] == b"granted":
                    granted = True
                    self._keep_beating()
                    return True
                self._keep_reading()
                try:
                    async with asyncio.timeout(int(reply[1]) / 1000):
                        await woken.wait()
                except TimeoutError:
                    continue
        finally:
            del self._waiting[permit]
            if not granted:
                # Out of the line, so that the next one need not wait for our silence.
                self._in_background(self._tell("leave", provider, permit=permit, more=0))

    async def _run(self, op: str, provider: str, **args: Any) -> list[Any] | None:
        """The script's answer; None when there is none in time."""
        named = {"op": op, "provider": provider, **{name: value for name, value in args.items() if value is not None}}
        try:
            async with asyncio.timeout(self._answer_s):
                return await self._backend().run("budget", named, retry=False)
        except (QueueUnavailable, TimeoutError) as problem:
            if time.monotonic() >= self._degraded_until:
                log.warning(
                    "Redis does not answer about the limits of %s (%s); for now each worker keeps to them by itself",
                    provider,
                    str(problem) or "too slow",
                )
            self._degraded_until = time.monotonic() + DEGRADED_S
            return None

    async def _tell(self, op: str, provider: str, **args: Any) -> None:
        if time.monotonic() >= self._degraded_until:
            await self._run(op, provider, **args)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _keep_reading(self) -> None:
        if self._reader is None or self._reader.done():
            self._reader = asyncio.get_running_loop().create_task(self._read(), name="budget-wakes")

    async def _read(self) -> None:
        """Wake those whose turn it may be, while anybody waits. The position is kept, so that no call is missed."""
        while self._waiting:
            try:
                entries = await self._backend().read_stream(
                    f"budget:wake:{self._process}", self._position, count=100, block_ms=READ_BLOCK_MS
                )
            except QueueUnavailable:
                for event in self._waiting.values():
                    event.set()
                return
            for entry in entries:
                self._position = entry.id
                waiting = self._waiting.get(entry.fields[b"p"].decode())
                if waiting is not None:
                    waiting.set()

    def _keep_beating(self) -> None:
        if self._beater is None or self._beater.done():
            self._beater = asyncio.get_running_loop().create_task(self._beat(), name="budget-beat")

    async def _beat(self) -> None:
        """Renew the leases of what is held."""
        while True:
            await asyncio.sleep(BEAT_S)
            shared: dict[str, list[str]] = {}
            for permit, held in self._permits.items():
                if not held.local:
                    shared.setdefault(held.provider, []).append(permit)
            if not shared:
                return
            for provider, permits in shared.items():
                await self._tell("beat", provider, permits=permits)
