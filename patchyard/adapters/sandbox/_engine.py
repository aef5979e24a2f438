"""A small HTTP client of the Docker engine's API over its unix socket or TCP.

Own code because attach needs a hijacked connection made before the start, which docker-py's response buffer can swallow
bytes of; and because a call costs 0.4 ms here and 3 ms there (docs/decisions/0010).
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from .errors import DiskFull, EngineUnavailable

_log = logging.getLogger(__name__)
_TIMEOUT_S = 60
_NEWEST_API = (1, 47)
"""Newest API version that this client was written against; older engines are asked in theirs."""


class Response(NamedTuple):
    """Status and parsed body (JSON, or text where it is none)."""

    status: int
    body: Any

    @property
    def message(self) -> str:
        """The engine's own error text: for logs, as it can hold host paths."""
        return str(self.body.get("message", "")) if isinstance(self.body, dict) else str(self.body)


class Stream(NamedTuple):
    """A hijacked connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@dataclass(frozen=True)
class EngineAddress:
    """Where the engine listens: a unix socket or a TCP port."""

    path: str | None = None
    host: str = ""
    port: int = 0

    @classmethod
    def parse(cls, url: str) -> "EngineAddress":
        """From a DOCKER_HOST value. ValueError with the forms that work."""
        parts = urlsplit(url)
        if parts.scheme == "unix" and parts.path:
            return cls(path=parts.path)
        if parts.scheme in ("tcp", "http") and parts.hostname:
            return cls(host=parts.hostname, port=parts.port or 2375)
        raise ValueError(f"{url!r} names no Docker engine: use unix:///path/to/docker.sock or tcp://host:port")


class EngineClient:
    """One request per connection; every failure to talk is an EngineUnavailable with the remedy."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._address = EngineAddress.parse(url)
        self._prefix: str | None = None

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: Any = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> Response:
        """One request. DiskFull, EngineUnavailable; other statuses are the caller's to judge."""
        try:
            async with asyncio.timeout(timeout_s):
                target = await self._versioned(path)
                stream = await self._send(method, _with_query(target, query), body, upgrade=False)
                try:
                    response = _parse(await stream.reader.read())
                finally:
                    stream.writer.close()
        except TimeoutError:
            raise EngineUnavailable(
                "The Docker engine did not answer in time: see `docker info` and the engine's log."
            ) from None
        except (OSError, ValueError) as error:
            raise self._unreachable(error) from error
        if response.status >= 400:
            _log.debug("engine: %s %s: %d %s", method, path, response.status, response.message)
            if "no space left" in response.message:
                raise DiskFull("The Docker engine's disk is full: free some space, e.g. remove unused images.")
        return response

    async def hijack(self, path: str, *, query: Mapping[str, str | int]) -> Stream:
        """POST that turns the connection into a raw stream."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                target = await self._versioned(path)
                stream = await self._send("POST", _with_query(target, query), None, upgrade=True)
                head = await stream.reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            raise EngineUnavailable(
                "The Docker engine did not attach in time: see `docker info` and the engine's log."
            ) from None
        except (OSError, asyncio.IncompleteReadError) as error:
            raise self._unreachable(error) from error
        if int(head.split()[1]) not in (101, 200):
            stream.writer.close()
            raise EngineUnavailable("The Docker engine refused to attach to the new container.")
        return stream

    async def _versioned(self, path: str) -> str:
        if self._prefix is None:
            stream = await self._send("GET", "/_ping", None, upgrade=False)
            try:
                head = (await stream.reader.read()).partition(b"\r\n\r\n")[0].decode("latin-1")
            finally:
                stream.writer.close()
            fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
            major, _, minor = fields.get("api-version", "1.41").partition(".")
            version = min(_NEWEST_API, (int(major), int(minor)))
            self._prefix = f"/v{version[0]}.{version[1]}"
        return self._prefix + path

    async def _send(self, method: str, target: str, body: Any, *, upgrade: bool) -> Stream:
        if self._address.path is not None:
            reader, writer = await asyncio.open_unix_connection(self._address.path, limit=1 << 18)
        else:
            reader, writer = await asyncio.open_connection(self._address.host, self._address.port, limit=1 << 18)
        data = b"" if body is None else json.dumps(body).encode()
        connection = "Upgrade\r\nUpgrade: tcp" if upgrade else "close"
        head = (
            f"{method} {target} HTTP/1.1\r\nHost: docker\r\nConnection: {connection}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        try:
            writer.write(head.encode() + data)
            await writer.drain()
        except BaseException:
            writer.close()
            raise
        return Stream(reader, writer)

    def _unreachable(self, error: Exception) -> EngineUnavailable:
        if isinstance(error, PermissionError):
            return EngineUnavailable(
                "This user may not use the Docker engine: add it to the group `docker`, or use a rootless engine."
            )
        return EngineUnavailable("No Docker engine answers: start it, or set PATCHYARD_DOCKER_HOST to one that runs.")


def _with_query(path: str, query: Mapping[str, str | int] | None) -> str:
    return f"{path}?{urlencode(query, quote_via=quote)}" if query else path


def _parse(raw: bytes) -> Response:
    head, _, body = raw.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/"):
        raise ValueError("no HTTP answer")
    if b"transfer-encoding: chunked" in head.lower():
        body = _dechunk(body)
    try:
        parsed: Any = json.loads(body) if body else None
    except ValueError:
        parsed = body.decode(errors="replace")
    return Response(int(head.split()[1]), parsed)


def _dechunk(body: bytes) -> bytes:
    parts = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size.split(b";")[0] or b"0", 16)
        if not length:
            break
        parts.append(rest[:length])
        body = rest[length + 2 :]
    return b"".join(parts)
