"""The socket of a thread, what the server remembers over it, and all sockets of a process."""

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import httpx

from patchyard.adapters.model.websocket.socket import PROTOCOL_ERRORS, WebSocket
from patchyard.adapters.model.websocket.warmup import Announcement, WarmUp, WarmUpFailed
from patchyard.protocol.model_items import ModelItem

IDLE_S = 240.0
"""A thread whose next turn comes later opens a new socket: both sides hold memory for an open one."""
MAX_STALE = 3
"""Forgotten histories in a row; a server that never remembers is treated like one whose sockets break."""
WITHOUT_S = 600.0
"""A provider that answered 426 is not asked for a socket for so long, by no thread of the process."""
KEPT_THREADS = 4000
"""Threads of which is remembered that they went over to SSE."""


@dataclass(frozen=True)
class Known:
    """What the server holds: its newest response and all that led to it."""

    response_id: str
    head: bytes
    """Instructions, tools and options that it was made with."""
    items: Sequence[ModelItem]

    def new_items(self, head: bytes, items: Sequence[ModelItem]) -> Sequence[ModelItem] | None:
        """What a request adds to it. None: the request does not continue it, or adds nothing."""
        if not self.response_id or head != self.head or len(items) <= len(self.items):
            return None
        same = all(old is new or old == new for old, new in zip(self.items, items, strict=False))
        return items[len(self.items) :] if same else None


class Taken(NamedTuple):
    """A socket in use."""

    socket: WebSocket
    fresh: bool
    """Whether it was opened just now."""
    unanswered: Announcement | None = None
    """What it was told before; its answer comes first."""


class ThreadSocket:
    """One per thread and provider. At most one request uses it at a time; between two it answers pings."""

    def __init__(self) -> None:
        self.known: Known | None = None
        self.in_use = False
        self.off = False
        """The thread went over to SSE for good."""
        self.prewarms = True
        """False: the server refuses what it is told in advance."""
        self._failures = self._stale = 0
        self._socket: WebSocket | None = None
        self._window: int | None = None
        self._warmup: WarmUp | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether a socket is held, or being opened."""
        return self._socket is not None or self._warmup is not None

    def warm(self, window: int, connect: Callable[[], Awaitable[WebSocket]], announcement: Announcement | None) -> None:
        """Open the socket for a request of this window that comes later. Does nothing when there is one."""
        if not (self.in_use or self.off or self.is_open):
            self._window = window
            self._warmup = WarmUp(self, connect, announcement, patience_s=IDLE_S)

    async def warmed(self, warmup: WarmUp, socket: WebSocket) -> None:
        """See warmup.Owner. A request that waits for the socket takes it from there."""
        if self._warmup is warmup and not self.in_use:
            self._warmup, self._socket, self.known = None, socket, _known(warmup)
            self._watch_idle(socket)

    async def not_warmed(self, warmup: WarmUp) -> None:
        """See warmup.Owner."""
        if self._warmup is warmup and not self.in_use:
            await self.reset()

    def claim(self) -> bool:
        """Reserve it for a request. False: another one uses it, or the thread is done with sockets."""
        if self.in_use or self.off:
            return False
        self.in_use = True
        return True

    async def take(self, window: int, connect: Callable[[], Awaitable[WebSocket]]) -> Taken:
        """The socket for a request of this context window. A compacted thread gets a new one. Errors of `connect`."""
        await self._stop_watching()
        if self._window != window:
            await self.reset()
        self._window = window
        if self._warmup is not None and (taken := await self._take_warm(self._warmup)) is not None:
            return taken
        if self._socket is not None:
            return Taken(self._socket, fresh=False)
        self.known = None
        self._socket = await connect()
        return Taken(self._socket, fresh=True)

    async def _take_warm(self, warmup: WarmUp) -> Taken | None:
        """The socket that was opened before; None: it is of no use."""
        try:
            self._socket = await warmup.socket()
        except WarmUpFailed:
            await self.reset()
            return None
        self._warmup, self.known = None, _known(warmup)
        return Taken(self._socket, fresh=False, unanswered=warmup.announcement if self.known is None else None)

    def keep(self, known: Known) -> None:
        """The request went well. At once, so that the thread's next request finds the socket free."""
        self.known, self.in_use, self._failures, self._stale = known, False, 0, 0
        if self._socket is not None:
            self._watch_idle(self._socket)

    async def drop(self) -> None:
        """The request went badly: the socket is closed, since nobody knows what it would say next."""
        await self.reset()
        self.in_use = False

    async def reset(self) -> None:
        """Close the socket; the next request opens another. Twice is harmless."""
        await self._stop_watching()
        socket, warmup = self._socket, self._warmup
        self._socket = self._warmup = self.known = None
        with contextlib.suppress(httpx.TransportError, *PROTOCOL_ERRORS):
            if warmup is not None:
                await warmup.stop()
            if socket is not None:
                await socket.close()

    def failed(self, allowed: int) -> bool:
        """Count a broken socket. True: that was one too many."""
        self._failures += 1
        return self._failures > allowed

    def stale(self) -> bool:
        """Whether it is worth the while to try again at once: not when each new socket is refused like the last."""
        self._stale += 1
        return self._stale <= MAX_STALE

    async def _stop_watching(self) -> None:
        watching, self._watching = self._watching, None
        if watching is not None and watching is not asyncio.current_task():
            watching.cancel()
            await asyncio.wait({watching})

    def _watch_idle(self, socket: WebSocket) -> None:
        self._watching = asyncio.get_running_loop().create_task(self._watch(socket), name="model-socket-idle")

    async def _watch(self, socket: WebSocket) -> None:
        """Answer pings, and notice the end: of the socket, or of our patience."""
        with contextlib.suppress(TimeoutError, httpx.TransportError, *PROTOCOL_ERRORS):
            async with asyncio.timeout(IDLE_S):
                while True:
                    await socket.receive(None)
        await self.reset()


def _known(warmup: WarmUp) -> Known | None:
    told = warmup.announcement
    return None if told is None or told.response_id is None else Known(told.response_id, told.head, ())


class ThreadSockets:
    """All threads' sockets of a process. Belongs to one event loop."""

    def __init__(self, *, limit: int, now: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._now = limit, now
        self._threads: OrderedDict[tuple[str, str], ThreadSocket] = OrderedDict()
        self._without: dict[str, float] = {}
        """Until when a provider is known to have no sockets."""

    def unsupported(self, provider: str) -> None:
        """The provider answered 426."""
        self._without[provider] = self._now() + WITHOUT_S

    def supports(self, provider: str) -> bool:
        """Whether it is worth the while to ask for a socket."""
        return self._now() >= self._without.get(provider, 0.0)

    def of(self, provider: str, thread_id: str) -> ThreadSocket:
        """The thread's socket, open or not."""
        key = (provider, thread_id)
        found = self._threads.get(key)
        if found is None:
            found = self._threads[key] = ThreadSocket()
        self._threads.move_to_end(key)
        while len(self._threads) > KEPT_THREADS and (unused := self._oldest(lambda one: not one.is_open)):
            del self._threads[unused]
        return found

    async def make_room(self, wanted: ThreadSocket) -> None:
        """Close the idle socket that was used longest ago when there are as many as there may be beside this one."""

        def other(one: ThreadSocket) -> bool:
            return one.is_open and one is not wanted

        if sum(map(other, self._threads.values())) < self._limit:
            return
        oldest = self._oldest(other)
        if oldest is not None:
            await self._threads[oldest].reset()

    async def forget(self, thread_id: str) -> None:
        """Close a thread's sockets and forget what went wrong with them."""
        for key in [key for key in self._threads if key[1] == thread_id]:
            await self._threads.pop(key).reset()

    async def close(self) -> None:
        """Close all. Twice is harmless."""
        threads, self._threads = self._threads, OrderedDict()
        for thread in threads.values():
            await thread.reset()

    def _oldest(self, fits: Callable[[ThreadSocket], bool]) -> tuple[str, str] | None:
        return next((key for key, one in self._threads.items() if not one.in_use and fits(one)), None)
