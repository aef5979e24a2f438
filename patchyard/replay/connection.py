"""One HTTP/1.1 connection over asyncio streams, parsed by h11."""

import asyncio
import contextlib
import zlib
from collections.abc import Awaitable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import h11

READ_BYTES = 64 * 1024
MAX_BODY_BYTES = 256 * 1024 * 1024
"""A history near any model's limit is far below; more is a mistake or an attack."""


class ClientClosed(Exception):
    """The client went away."""


class BadRequest(Exception):
    """The request can't be read; the text says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class HttpRequest:
    """A request with its whole body."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Lower-case names."""
    body: bytes


class HttpConnection:
    """Server side of a connection. Sending raises ClientClosed when nobody listens any more."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=READ_BYTES)
        self._leading = b""

    async def next_request(self) -> HttpRequest | None:
        """The next request; None when there will be none. BadRequest: refuse it."""
        if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()
        if self._h11.our_state is not h11.IDLE:
            return None
        try:
            head = await self._next_event()
            if not isinstance(head, h11.Request):
                return None
            headers = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
            if headers.get("expect", "").lower() == "100-continue":
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            body = await self._body()
        except h11.RemoteProtocolError as problem:
            raise BadRequest(400, f"not an HTTP/1.1 request: {problem}") from problem
        return HttpRequest(
            head.method.decode("ascii"), head.target.decode("ascii"), headers, _decoded(body, headers.get("content-encoding"))
        )

    async def respond(self, status: int, body: bytes, *, headers: Mapping[str, str]) -> None:
        """Send a whole answer."""
        await self.start(status, {**headers, "content-length": str(len(body))})
        if body:
            await self._send(h11.Data(data=body))
        await self._send(h11.EndOfMessage())

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of an answer; without content-length the body is chunked."""
        await self._send(h11.Response(status_code=status, headers=list(headers.items())))

    async def send(self, data: bytes) -> None:
        """Send a part of the body; nothing for an empty one."""
        if data:
            await self._send(h11.Data(data=data))

    async def finish(self) -> None:
        """End the body."""
        await self._send(h11.EndOfMessage())

    async def upgrade(self, headers: Mapping[str, str]) -> None:
        """Switch protocols; from here on only `read_raw` and `write_raw` make sense."""
        await self._send(h11.InformationalResponse(status_code=101, headers=list(headers.items())))
        self._leading, _ = self._h11.trailing_data

    async def read_raw(self) -> bytes:
        """Bytes of an upgraded connection; empty at its end."""
        if self._leading:
            leading, self._leading = self._leading, b""
            return leading
        try:
            return await self._reader.read(READ_BYTES)
        except OSError:
            return b""

    async def write_raw(self, data: bytes) -> None:
        """Send bytes over an upgraded connection. ClientClosed."""
        if not data:
            return
        if self._writer.is_closing():
            raise ClientClosed
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as problem:
            raise ClientClosed from problem

    async def unless_closed(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it while watching the client: when it closes, the work is cancelled and ClientClosed raised."""
        working = asyncio.ensure_future(work)
        try:
            while not working.done():
                reading = asyncio.ensure_future(self._reader.read(READ_BYTES))
                try:
                    await asyncio.wait({working, reading}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    await _cancelled(reading)
                if reading.cancelled() or working.done():
                    break
                data = b"" if reading.exception() is not None else reading.result()
                self._h11.receive_data(data)
                if not data:
                    raise ClientClosed
        finally:
            await _cancelled(working)
        if not working.cancelled():
            working.result()

    async def close(self, *, abort: bool = False) -> None:
        """Close the socket; `abort` drops what was not sent yet."""
        if abort:
            self._writer.transport.abort()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _next_event(self) -> h11.Event | type[h11.PAUSED]:
        while True:
            event = self._h11.next_event()
            if event is not h11.NEED_DATA:
                return event  # type: ignore[return-value]
            try:
                self._h11.receive_data(await self._reader.read(READ_BYTES))
            except OSError:
                return h11.ConnectionClosed()

    async def _body(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while isinstance(event := await self._next_event(), h11.Data):
            parts.append(bytes(event.data))
            size += len(event.data)
            if size > MAX_BODY_BYTES:
                raise BadRequest(413, f"the body has more than {MAX_BODY_BYTES} bytes")
        return b"".join(parts)

    async def _send(self, event: h11.Event) -> None:
        await self.write_raw(self._h11.send(event) or b"")


async def _cancelled(task: Awaitable[Any]) -> None:
    future = asyncio.ensure_future(task)
    future.cancel()
    await asyncio.wait({future})


def _decoded(body: bytes, encoding: str | None) -> bytes:
    match encoding:
        case None | "" | "identity":
            return body
        case "gzip" | "deflate":
            try:
                return zlib.decompress(body, wbits=47)
            except zlib.error as problem:
                raise BadRequest(400, f"the body is not {encoding}: {problem}") from problem
        case _:
            raise BadRequest(415, f"content-encoding {encoding} is not understood; send the body as it is, or gzip")
