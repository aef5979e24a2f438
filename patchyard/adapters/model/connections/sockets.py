"""TCP and TLS for httpcore on plain asyncio, with paced reads.

A model sends a few bytes per token, each in its own packet and TLS record. Waking a task for each costs far more than
the bytes: here the loop only collects them, and the reader is woken at most once per pace.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Iterable
from typing import Any

import httpcore

HIGH_WATER = 64 * 1024
"""Unread bytes at which the socket is no longer read: the peer is slowed down instead of our memory growing."""
BURST_BYTES = 16 * 1024
"""A read that brings so much is no trickle of tokens: waiting would only limit the throughput."""
CLOSE_WAIT_S = 1.0


class _Inbox(asyncio.Protocol):
    """Collects what arrives; at most one task waits for it."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.buffer = bytearray()
        self.ended = False
        self.error: Exception | None = None
        self.closed = asyncio.Event()
        self._reading_paused = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - create_connection makes no other
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if len(self.buffer) >= HIGH_WATER and not self._reading_paused and self.transport is not None:
            self._reading_paused = True
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self.ended = True
        self._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        self.error = exc
        self.closed.set()
        self._writable.set()
        self._wake()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def arrived(self) -> None:
        """Returns when there are bytes, or there will be none."""
        while not self.buffer and not self.ended:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    async def writable(self) -> None:
        """Returns when the peer took enough of what was written."""
        await self._writable.wait()

    def take(self, max_bytes: int) -> bytes:
        """Bytes from the front; the socket is read again when little is left."""
        data = bytes(self.buffer[:max_bytes])
        del self.buffer[:max_bytes]
        if self._reading_paused and len(self.buffer) < HIGH_WATER // 2 and self.transport is not None and not self.ended:
            self._reading_paused = False
            self.transport.resume_reading()
        return data


class PacedStream(httpcore.AsyncNetworkStream):
    """One connection. After a write the next read is immediate; further reads keep the pace."""

    def __init__(self, inbox: _Inbox, pace_s: float) -> None:
        self._inbox = inbox
        self._pace_s = pace_s
        self._next_read = 0.0
        self._hurry = False

    @property
    def _transport(self) -> asyncio.Transport:
        assert self._inbox.transport is not None  # noqa: S101 - set before the stream is made
        return self._inbox.transport

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Bytes, or b"" at the end. httpcore.ReadTimeout, ReadError."""
        loop = asyncio.get_running_loop()
        wait = self._next_read - loop.time()
        if wait > 0 and not self._inbox.ended:
            await asyncio.sleep(wait)
        if not self._inbox.buffer:
            try:
                async with asyncio.timeout(timeout):
                    await self._inbox.arrived()
            except TimeoutError as problem:
                raise httpcore.ReadTimeout(str(problem)) from problem
        if self._inbox.error is not None and not self._inbox.buffer:
            raise httpcore.ReadError(str(self._inbox.error)) from self._inbox.error
        data = self._inbox.take(max_bytes)
        self._next_read = 0.0 if self._hurry or len(data) >= BURST_BYTES else loop.time() + self._pace_s
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send. httpcore.WriteTimeout, WriteError."""
        self._next_read, self._hurry = 0.0, False
        if self._transport.is_closing():
            raise httpcore.WriteError("the connection was closed by the server")
        self._transport.write(buffer)
        try:
            async with asyncio.timeout(timeout):
                await self._inbox.writable()
        except TimeoutError as problem:
            raise httpcore.WriteTimeout(str(problem)) from problem

    def hurry(self) -> None:
        """Read without a pace until the next write: what is left is only the end of the body."""
        self._next_read, self._hurry = 0.0, True

    async def aclose(self) -> None:
        """Close at once; what was not sent is dropped."""
        self._transport.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WAIT_S):
                await self._inbox.closed.wait()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        """The same connection, encrypted. httpcore.ConnectTimeout, ConnectError."""
        loop = asyncio.get_running_loop()
        try:
            transport = await loop.start_tls(
                self._transport, self._inbox, ssl_context, server_hostname=server_hostname, ssl_handshake_timeout=timeout
            )
        except (TimeoutError, ConnectionAbortedError) as problem:
            await self.aclose()
            raise httpcore.ConnectTimeout("the TLS handshake took too long") from problem
        except (OSError, ssl.SSLError) as problem:
            await self.aclose()
            raise httpcore.ConnectError(str(problem)) from problem
        assert transport is not None  # noqa: S101 - None only where the connection was lost, which raises above
        self._inbox.transport = transport
        return self

    def get_extra_info(self, info: str) -> Any:
        """What httpcore asks for; `is_readable` tells it that an idle connection is dead."""
        if info == "is_readable":
            return self._inbox.ended or bool(self._inbox.buffer)
        names = {"client_addr": "sockname", "server_addr": "peername", "socket": "socket", "ssl_object": "ssl_object"}
        return self._transport.get_extra_info(names[info]) if info in names else None


def _close_unwanted(connecting: "asyncio.Task[tuple[asyncio.Transport, _Inbox]]") -> None:
    """Cancelling asyncio's race of addresses would lose a socket that has just won it: it is left to end, and closed."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result()[0].close()


class PacedBackend(httpcore.AsyncNetworkBackend):
    """Opens PacedStreams."""

    def __init__(self, pace_s: float) -> None:
        self._pace_s = pace_s

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect. httpcore.ConnectTimeout, ConnectError."""
        loop = asyncio.get_running_loop()
        connecting = loop.create_task(loop.create_connection(_Inbox, host, port, happy_eyeballs_delay=0.25))
        try:
            async with asyncio.timeout(timeout):
                transport, inbox = await asyncio.shield(connecting)
        except asyncio.CancelledError:
            connecting.add_done_callback(_close_unwanted)
            raise
        except TimeoutError as problem:
            connecting.add_done_callback(_close_unwanted)
            raise httpcore.ConnectTimeout("the connection could not be made in time") from problem
        except OSError as problem:
            raise httpcore.ConnectError(str(problem)) from problem
        for option in socket_options or ():
            transport.get_extra_info("socket").setsockopt(*option)
        return PacedStream(inbox, self._pace_s)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)
