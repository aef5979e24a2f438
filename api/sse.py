"""Server-Sent Events: pre-encoded frames of one thread, heartbeats, and an end that clients understand."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from patchyard.protocol.service import StreamEnd

HEARTBEAT_S = 15.0
"""Silence after which a comment is sent: below the usual 30 to 60 s after which proxies cut a connection."""
STALLED_S = 60.0
"""A client that takes nothing for so long is cut off; it comes back with Last-Event-ID."""

EndReason = Literal["turn_end", "shutdown", "error"]

_HEARTBEAT = b": heartbeat\n\n"
_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    # Proxies must neither collect nor compress the stream.
    "x-accel-buffering": "no",
}


def frame(event_type: str, data: bytes, ordinal: int | None) -> bytes:
    """One frame. Only durable events have an id, so that a client never resumes from something that is not stored."""
    head = f"event: {event_type}\n" if ordinal is None else f"id: {ordinal}\nevent: {event_type}\n"
    return head.encode() + b"data: " + data + b"\n\n"


def end_frame(reason: EndReason, error: str | None = None) -> bytes:
    """The last frame: after `turn_end` nothing follows, after the others the client connects again."""
    return frame("stream_end", StreamEnd(reason=reason, error=error).model_dump_json(exclude_none=True).encode(), None)


class EventStream(Response):
    """A response that sends frames as they come. Ends with its source, with the client, or when `stopping` is set."""

    def __init__(self, frames: AsyncGenerator[bytes, None], *, stopping: asyncio.Event) -> None:
        super().__init__(headers=_HEADERS)
        # The length is not known beforehand.
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        self._frames = frames
        self._stopping = stopping
        self._sending_since: float | None = None
        self._last_sent = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until somebody ends it."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        loop = asyncio.get_running_loop()
        self._last_sent = loop.time()
        copy = asyncio.ensure_future(self._copy(send))
        helpers = [
            asyncio.ensure_future(self._until_disconnected(receive)),
            asyncio.ensure_future(self._beat(send)),
            asyncio.ensure_future(self._stopping.wait()),
        ]
        try:
            await asyncio.wait([copy, *helpers], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (copy, *helpers):
                if not task.done():
                    task.cancel()
            results = await asyncio.gather(copy, *helpers, return_exceptions=True)
        if helpers[0].done() and not helpers[0].cancelled():
            return
        if isinstance(results[0], Exception):
            raise results[0]
        if self._stopping.is_set() and copy.cancelled():
            await send({"type": "http.response.body", "body": end_frame("shutdown"), "more_body": True})
        if self._sending_since is None or not copy.cancelled():
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _copy(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        async with aclosing(self._frames) as frames:
            async for piece in frames:
                self._sending_since = loop.time()
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                self._sending_since = None
                self._last_sent = loop.time()

    async def _beat(self, send: Send) -> None:
        """Returns when the client has stalled."""
        loop = asyncio.get_running_loop()
        while True:
            if self._sending_since is not None:
                if loop.time() - self._sending_since > STALLED_S:
                    return
                await asyncio.sleep(HEARTBEAT_S)
                continue
            quiet = loop.time() - self._last_sent
            if quiet >= HEARTBEAT_S:
                self._last_sent = loop.time()
                await send({"type": "http.response.body", "body": _HEARTBEAT, "more_body": True})
            else:
                await asyncio.sleep(HEARTBEAT_S - quiet)

    @staticmethod
    async def _until_disconnected(receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
