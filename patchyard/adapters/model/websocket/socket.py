"""A WebSocket over the process's own paced sockets. The protocol is the `websockets` library's, without its I/O."""

import base64
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpcore
import httpx
from websockets.exceptions import WebSocketException
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import Protocol, Side, State
from websockets.utils import accept_key

from patchyard.adapters.model.config import ProviderConfig
from patchyard.adapters.model.connections.translation import as_httpx
from patchyard.adapters.model.http_attempt import read_some

READ_BYTES = 64 * 1024
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""As for one event of an SSE stream."""
BETA = "responses_websockets=2026-02-06"


class SocketRefused(Exception):
    """The server answered the upgrade with something else."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(f"HTTP {status}")
        self.status, self.headers, self.body = status, headers, body


class SocketClosed(Exception):
    """The socket is over; the text says how."""


class WebSocket:
    """An open socket for text messages. One task reads, pings are answered while it does."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._stream: httpcore.AsyncNetworkStream = response.extensions["network_stream"]
        self._protocol = Protocol(Side.CLIENT, max_size=MAX_MESSAGE_BYTES)
        self._parts: list[bytes] = []
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        """Of the answer to the upgrade."""

    async def send(self, text: bytes) -> None:
        """Send a text message. SocketClosed, httpx.WriteError."""
        if self._protocol.state is not State.OPEN:
            raise SocketClosed(self._why())
        self._protocol.send_text(text)
        await self._flush()

    async def receive(self, timeout: float | None) -> list[bytes]:
        """The messages that the next read brings, maybe none. SocketClosed, httpx.ReadTimeout, httpx.ReadError. Cancel-safe."""
        if self._protocol.state is not State.OPEN:
            raise SocketClosed(self._why())
        with as_httpx():
            data = await self._stream.read(READ_BYTES, timeout)
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        messages = self._messages()
        await self._flush()
        return messages

    async def close(self) -> None:
        """Close at once. Twice is harmless."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
            await self._flush()
        await self._response.aclose()
        await self._stream.aclose()

    def _messages(self) -> list[bytes]:
        messages: list[bytes] = []
        for event in self._protocol.events_received():
            if not isinstance(event, Frame) or event.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                continue
            if event.fin and not self._parts:
                messages.append(bytes(event.data))
                continue
            self._parts.append(bytes(event.data))
            if event.fin:
                messages.append(b"".join(self._parts))
                self._parts = []
        return messages

    async def _flush(self) -> None:
        waiting = b"".join(self._protocol.data_to_send())
        if waiting:
            with as_httpx():
                await self._stream.write(waiting)

    def _why(self) -> str:
        if self._protocol.parser_exc is not None and not isinstance(self._protocol.parser_exc, EOFError):
            return f"protocol error: {self._protocol.parser_exc}"
        close = self._protocol.close_rcvd
        if close is None:
            return "the connection broke"
        return f"code {close.code}, {close.reason}" if close.reason else f"code {close.code}"


async def open_socket(client: httpx.AsyncClient, config: ProviderConfig, headers: Mapping[str, str]) -> WebSocket:
    """Ask for the upgrade. SocketRefused, httpx.TransportError."""
    key = base64.b64encode(os.urandom(16)).decode()
    upgrade = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": key,
        "openai-beta": BETA,
    }
    timeout = httpx.Timeout(config.connect_timeout_s)
    request = client.build_request(
        "GET", config.request_url, params=config.query or None, headers={**headers, **upgrade}, timeout=timeout
    )
    response = await client.send(request, stream=True)
    if response.status_code == 101 and response.headers.get("sec-websocket-accept") == accept_key(key):
        return WebSocket(response)
    try:
        body = b"" if response.status_code == 101 else await read_some(response)
    finally:
        await response.aclose()
    answered = {name.lower(): value for name, value in response.headers.items()}
    raise SocketRefused(502 if response.status_code == 101 else response.status_code, answered, body)


@asynccontextmanager
async def closing_on_error(socket: WebSocket) -> AsyncIterator[None]:
    """Whatever goes wrong inside, also a cancellation, costs the socket: nobody knows what it would say next."""
    try:
        yield
    except BaseException:
        await socket.close()
        raise


PROTOCOL_ERRORS = (WebSocketException, SocketClosed)
