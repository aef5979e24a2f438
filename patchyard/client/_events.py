"""A thread's events over connections that may break: no gap, no double."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import httpx

from patchyard.protocol.events import (
    AgentMessageDelta,
    Event,
    ExecOutputDelta,
    ItemCompleted,
    ReasoningDelta,
    ToolCallInputDelta,
)
from patchyard.protocol.service import StreamEnd

from ._sse import Frame, frames
from ._transport import Transport, backoff_s, connection_failed
from .errors import PatchyardError, RequestRefused, StreamLost

SILENT_FOR_S = 50.0
"""A stream without a byte for so long is dead: the service sends a heartbeat every 15 s."""


class LiveTexts:
    """Texts that are being typed. On a new connection the first delta of an open one carries it so far: only the rest is new."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}
        self._repeated: set[str] = set()

    def reconnect(self) -> None:
        """The next delta of each open text repeats it."""
        self._repeated = set(self._seen)

    def note(self, event: Event) -> None:
        """A durable event; an item that is complete has no open texts any more."""
        if isinstance(event.msg, ItemCompleted):
            done = [key for key in self._seen if key.endswith(f" {event.msg.item.id}")]
            for key in done:
                del self._seen[key]

    def unseen(self, event: Event) -> Event | None:
        """The live event without the text that was passed on before; None: nothing is left of it."""
        msg = event.msg
        if not isinstance(msg, AgentMessageDelta | ReasoningDelta | ToolCallInputDelta | ExecOutputDelta):
            return event
        key = f"{msg.type} {msg.item_id}"
        seen = self._seen.get(key, "")
        delta = msg.delta
        if key in self._repeated:
            self._repeated.discard(key)
            delta = delta.removeprefix(seen)
        self._seen[key] = seen + delta
        if delta == msg.delta:
            return event
        return event.model_copy(update={"msg": msg.model_copy(update={"delta": delta})}) if delta else None


class EventFeed:
    """Follows one event stream and takes it up again by Last-Event-ID after a break."""

    def __init__(
        self, transport: Transport, path: str, *, after: int | None, until: str | None, reconnect_for_s: float
    ) -> None:
        self._transport = transport
        self._path = path
        self._last = after
        self._until = until
        self._reconnect_for_s = reconnect_for_s
        self._texts = LiveTexts()

    async def events(self) -> AsyncGenerator[Event, None]:
        """The events, durable ones each exactly once and in order. StreamLost when the service stays away."""
        broken_since: float | None = None
        failures = 0
        while True:
            cause: Exception | None = None
            try:
                async with aclosing(self._connection()) as connection:
                    async for frame in connection:
                        broken_since, failures = None, 0
                        if frame.event == "stream_end":
                            if StreamEnd.model_validate_json(frame.data).reason == "turn_end":
                                return
                            break
                        event = self._unseen(Event.model_validate_json(frame.data))
                        if event is not None:
                            yield event
            except httpx.TransportError as error:
                cause = error
            except RequestRefused as error:
                if not error.retryable:
                    raise
                cause = error
            self._texts.reconnect()
            broken_since = broken_since or time.monotonic()
            failures += 1
            if time.monotonic() - broken_since > self._reconnect_for_s:
                raise self._lost(cause) from cause
            await asyncio.sleep(backoff_s(failures))

    async def _connection(self) -> AsyncGenerator[Frame, None]:
        headers = {"accept": "text/event-stream"}
        if self._last is not None:
            headers["last-event-id"] = str(self._last)
        params = {"until": self._until}
        async with self._transport.open_stream(
            self._path, params=params, headers=headers, silent_for_s=SILENT_FOR_S
        ) as response:
            async for frame in frames(response.aiter_raw()):
                yield frame

    def _unseen(self, event: Event) -> Event | None:
        """The event, or what of it is new; None: nothing."""
        if event.ordinal is None:
            return self._texts.unseen(event)
        if self._last is not None and event.ordinal <= self._last:
            return None
        self._last = event.ordinal
        self._texts.note(event)
        return event

    def _lost(self, cause: Exception | None) -> PatchyardError:
        reason = connection_failed(self._transport.base_url, cause).message if cause else "The service ended the stream."
        where = "the start" if self._last is None else f"record {self._last}"
        return StreamLost(
            f"The event stream broke and stayed away for {self._reconnect_for_s:.0f} s. {reason}",
            remedy=f"Nothing is lost: watch again from {where} once the service is back.",
        )
