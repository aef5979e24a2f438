"""One attempt over HTTP with server-sent events."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx

from patchyard.adapters.model.attempt import Attempt, AttemptSpec, StreamDecoder
from patchyard.adapters.model.config import ProviderConfig
from patchyard.adapters.model.connections.sockets import PacedStream
from patchyard.adapters.model.connections.sse import SseParser
from patchyard.adapters.model.decode import rate_limits

ERROR_BODY_BYTES = 64 * 1024
"""Of an error answer: enough for every provider's JSON."""
ERROR_BODY_S = 10.0
DRAIN_S = 1.0
"""After the last event: time for the end of the body, so that the connection can be used again."""


class HttpAttempt(Attempt):
    """POST, and the answer's events."""

    transport = "sse"

    def __init__(
        self,
        client: httpx.AsyncClient,
        config: ProviderConfig,
        spec: AttemptSpec,
        decoder: StreamDecoder,
        body: bytes,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(config, spec, decoder, now_ms=now_ms)
        self._client = client
        self._body = _Outgoing(body)
        self._headers = {**spec.headers, "content-length": str(len(body))}

    async def _exchange(self) -> None:
        config = self._config
        request = self._client.build_request(
            "POST",
            config.request_url,
            params=config.query or None,
            headers=self._headers,
            content=self._body,
            timeout=httpx.Timeout(config.idle_timeout_s, connect=config.connect_timeout_s),
            extensions={"trace": self._trace},
        )
        response = await self._client.send(request, stream=True)
        try:
            await self._response(response)
        finally:
            await response.aclose()

    async def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Httpcore's hook: the connection is there and the request goes out."""
        if event.endswith("send_request_headers.started"):
            self._sent()

    async def _response(self, response: httpx.Response) -> None:
        headers = {name.lower(): value for name, value in response.headers.items()}
        limits = rate_limits(headers)
        if response.status_code != 200:
            self._answered()
            if limits is not None:
                self._limited(limits)
            raise self._classifier.status(response.status_code, headers, await read_some(response), model=self._spec.model)
        kind = headers.get("content-type", "")
        if kind.startswith(("text/html", "application/json")):
            self._answered()
            raise self._classifier.not_a_stream(kind, await read_some(response))
        self._answered(limits)
        pieces = _pieces(response)
        await self._read(pieces)
        if not self.completed and not self._take(self._decoder.end()):
            raise self._classifier.stream_ended()
        await _drain(response, pieces)

    async def _read(self, pieces: AsyncIterator[bytes]) -> None:
        parser = SseParser()
        async for piece in pieces:
            self._count(len(piece))
            events = parser.feed(piece)
            if events and self._take(self._decoder.feed(events)):
                return
            if self.buffer.is_full:
                await self.buffer.room()


class _Outgoing(httpx.AsyncByteStream):
    """A request's body, let go as soon as it is sent: its answer may take minutes, for 200 turns at once (decision 0105)."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body, self._body = self._body, b""
        yield body


def _pieces(response: httpx.Response) -> AsyncIterator[bytes]:
    """The body. We ask for no compression; a gateway that compresses all the same is understood."""
    encoded = response.headers.get("content-encoding", "identity") not in ("", "identity")
    return response.aiter_bytes() if encoded else response.aiter_raw()


async def _drain(response: httpx.Response, pieces: AsyncIterator[bytes]) -> None:
    stream = response.extensions.get("network_stream")
    if isinstance(stream, PacedStream):
        stream.hurry()
    with contextlib.suppress(TimeoutError, httpx.TransportError):
        async with asyncio.timeout(DRAIN_S):
            async for _ in pieces:
                pass


async def read_some(response: httpx.Response) -> bytes:
    """The start of an error's body; what arrived, when it breaks off."""
    body = bytearray()
    with contextlib.suppress(TimeoutError, httpx.HTTPError):
        async with asyncio.timeout(ERROR_BODY_S):
            async for piece in _pieces(response):
                body += piece
                if len(body) >= ERROR_BODY_BYTES:
                    break
    return bytes(body[:ERROR_BODY_BYTES])
