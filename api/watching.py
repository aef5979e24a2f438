"""From the event hub to frames of an SSE response, and when such a stream is over."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal

from patchyard.adapters.queue import QueueCore
from patchyard.adapters.streams import EventFrame, EventHub, frame_of_line
from patchyard.protocol.events import TERMINAL_TURN_TYPES

from .records import Records
from .sse import end_frame, frame

Until = Literal["turn_end", "never"]
"""turn_end: the stream ends when no turn is left, at once if there is none. never: it goes on for follow-ups."""


class Watching:
    """Opens event streams of threads."""

    def __init__(self, queue: QueueCore, hub: EventHub, records: Records) -> None:
        self._queue = queue
        self._hub = hub
        self._records = records

    async def frames(self, tenant_id: str, thread_id: str, *, after: int | None, until: Until) -> AsyncGenerator[bytes, None]:
        """Pre-encoded SSE frames after ordinal `after` (None: from the first)."""
        if until == "turn_end" and await self._is_over(thread_id):
            async with aclosing(self._past(tenant_id, thread_id, after)) as past:
                async for piece in past:
                    yield piece
            yield end_frame("turn_end")
            return
        async with aclosing(self._hub.subscribe(thread_id, after=after)) as events:
            async for event in events:
                yield _encode(event)
                ended = event.type in TERMINAL_TURN_TYPES or event.type == "thread_closed"
                if until == "turn_end" and ended and event.ordinal is not None and await self._is_over(thread_id):
                    # What was committed together with the terminal event is there already: nothing has to be waited for.
                    async with aclosing(self._past(tenant_id, thread_id, event.ordinal)) as rest:
                        async for piece in rest:
                            yield piece
                    yield end_frame("turn_end")
                    return
        # Only a closed thread ends by itself; a hub that ends is shutting down, and says so elsewhere.
        yield end_frame("turn_end" if await self._is_over(thread_id) else "shutdown")

    async def _is_over(self, thread_id: str) -> bool:
        # Whether a worker still has the thread does not count: it may have an answer left to give, or hold a box for commands that
        # run on, and when it lets go no event says so.
        state = await self._queue.thread_state(thread_id)
        return state is None or state.active_turn_id is None

    async def _past(self, tenant_id: str, thread_id: str, after: int | None) -> AsyncGenerator[bytes, None]:
        start = 0 if after is None else after + 1
        async with aclosing(self._records.lines(tenant_id, thread_id, start=start)) as lines:
            async for line in lines:
                event = frame_of_line(tenant_id, thread_id, line.ordinal, line.json)
                if event is not None:
                    yield _encode(event)


def _encode(event: EventFrame) -> bytes:
    return frame(event.type, event.data, event.ordinal)
