"""The HTTP connections of a process: one pool per proxy and CA, shared by all providers."""

import socket
import ssl
from collections.abc import AsyncIterator
from types import TracebackType
from typing import NamedTuple

import httpcore
import httpx

from patchyard.adapters.model.config import ProviderConfig
from patchyard.adapters.model.connections.sockets import PacedBackend
from patchyard.adapters.model.connections.translation import as_httpx
from patchyard.adapters.model.websocket.thread import ThreadSockets

STREAMS = 200
"""Turns that one worker runs at once; each has at most one open stream."""
PACE_S = 0.025
"""Watchers get deltas at most every 50 ms; half of it is not felt and saves most wake-ups."""
MAX_SOCKETS = 400
"""WebSockets of a process, those of threads between two turns included."""
KEEP_ALIVE_S = 55.0
"""Below the 60 s after which load balancers drop idle connections."""


class _Body(httpx.AsyncByteStream):
    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with as_httpx():
            async for piece in self._response.aiter_stream():
                yield piece

    async def aclose(self) -> None:
        await self._response.aclose()


class PacedTransport(httpx.AsyncBaseTransport):
    """httpx over an httpcore pool whose sockets are ours."""

    def __init__(self, *, proxy: str | None, context: ssl.SSLContext, max_connections: int, pace_s: float) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=context,
            proxy=None if proxy is None else _proxy(proxy, context),
            max_connections=max_connections,
            max_keepalive_connections=max_connections,
            keepalive_expiry=KEEP_ALIVE_S,
            network_backend=PacedBackend(pace_s),
            # A silent stream may last minutes: without probes a vanished peer is noticed only by the idle timeout.
            socket_options=[(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)],
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See httpx.AsyncBaseTransport."""
        url = httpcore.URL(
            scheme=request.url.raw_scheme, host=request.url.raw_host, port=request.url.port, target=request.url.raw_path
        )
        with as_httpx():
            response = await self._pool.handle_async_request(
                httpcore.Request(
                    method=request.method,
                    url=url,
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        return httpx.Response(
            status_code=response.status, headers=response.headers, stream=_Body(response), extensions=response.extensions
        )

    async def aclose(self) -> None:
        """Close every connection."""
        await self._pool.aclose()


def _proxy(url: str, context: ssl.SSLContext) -> httpcore.Proxy:
    parts = httpx.URL(url)
    bare = parts.copy_with(username=None, password=None)
    auth = (parts.username, parts.password) if parts.username or parts.password else None
    return httpcore.Proxy(str(bare), auth=auth, ssl_context=context if parts.scheme == "https" else None)


class _Way(NamedTuple):
    proxy: str | None
    ca_file: str | None
    tls: bool
    sockets: bool


def _context(way: _Way) -> ssl.SSLContext:
    """Loading the usual CAs takes 80 ms: not done where nothing is encrypted."""
    if way.ca_file:
        return ssl.create_default_context(cafile=way.ca_file)
    return httpx.create_ssl_context(trust_env=False) if way.tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class ModelTransport:
    """Gives each provider its HTTP client; providers with the same proxy and CA share one. Belongs to one event loop."""

    def __init__(self, *, streams: int = STREAMS, pace_s: float = PACE_S) -> None:
        self._streams = streams
        self._pace_s = pace_s
        self._clients: dict[_Way, httpx.AsyncClient] = {}
        self.sockets = ThreadSockets(limit=MAX_SOCKETS)
        """The WebSockets of all threads."""

    def client(self, config: ProviderConfig, *, sockets: bool = False) -> httpx.AsyncClient:
        """The client for a provider, made at its first use. OSError, ssl.SSLError: the CA file can't be used.

        `sockets`: the one for WebSockets, which keep their connections between requests and so have a pool of their own.
        """
        proxy = config.proxy.get_secret_value() if config.proxy else None
        tls = config.base_url.startswith("https:") or (proxy or "").startswith("https:")
        way = _Way(proxy, config.ca_file, tls, sockets)
        if way not in self._clients:
            context = _context(way)
            # Some room above the streams, so that a request never waits for a connection that is being closed.
            room = MAX_SOCKETS if sockets else self._streams
            transport = PacedTransport(
                proxy=way.proxy, context=context, max_connections=room + room // 4 + 8, pace_s=self._pace_s
            )
            self._clients[way] = httpx.AsyncClient(transport=transport, trust_env=False, follow_redirects=False)
        return self._clients[way]

    async def aclose(self) -> None:
        """Close every connection. Twice is harmless."""
        await self.sockets.close()
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.aclose()

    async def __aenter__(self) -> "ModelTransport":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
