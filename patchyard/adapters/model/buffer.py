"""Events between socket and turn: bounded, so that a slow turn slows the provider down instead of filling memory."""

import asyncio
from collections import deque

from patchyard.agent.ports import (
    ItemAdded,
    ItemDone,
    ModelEvent,
    ReasoningSummaryDelta,
    TextDelta,
    ToolInputDelta,
)

MAX_EVENTS = 1600
MAX_BYTES = 8 * 1024 * 1024
"""Of the events' data: 1,600 whole tool inputs could be gigabytes."""
MERGED_CHARS = 1024
"""Deltas that wait are joined up to this length: fewer events for a turn that fell behind."""


class EventBuffer:
    """One producer, one consumer. Full: the producer waits until half of it is free."""

    def __init__(self, *, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> None:
        self._max_events, self._max_bytes = max_events, max_bytes
        self._events: deque[ModelEvent] = deque()
        self._sizes: deque[int] = deque()
        self._bytes = 0
        self._finished = False
        self._error: Exception | None = None
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def __len__(self) -> int:
        return len(self._events)

    @property
    def is_full(self) -> bool:
        """Whether the producer should wait for room."""
        return len(self._events) >= self._max_events or self._bytes >= self._max_bytes

    def put(self, event: ModelEvent, size: int) -> None:
        """Append; `size` is roughly its bytes. Never refuses: call `room` between pieces."""
        merged = _merged(self._events[-1], event) if self._events else None
        self._bytes += size
        if merged is not None:
            self._events[-1] = merged
            self._sizes[-1] += size
            return
        self._events.append(event)
        self._sizes.append(size)
        if self.is_full:
            self._room.clear()
        self._arrived.set()

    async def room(self) -> None:
        """Returns when there is room."""
        await self._room.wait()

    def finish(self, error: Exception | None = None) -> None:
        """Nothing more will come; the consumer gets what is left, then the error."""
        self._finished, self._error = True, error
        self._arrived.set()

    async def get(self) -> ModelEvent | None:
        """The next event; None when the producer finished. Raises the producer's error. Does not suspend while events wait."""
        while not self._events:
            if self._finished:
                if self._error is not None:
                    raise self._error
                return None
            self._arrived.clear()
            await self._arrived.wait()
        self._bytes -= self._sizes.popleft()
        event = self._events.popleft()
        if not self._room.is_set() and len(self._events) <= self._max_events // 2 and self._bytes <= self._max_bytes // 2:
            self._room.set()
        return event


def _merged(last: ModelEvent, event: ModelEvent) -> ModelEvent | None:
    """Both deltas in one, if they continue the same text and are short."""
    match last, event:
        case (TextDelta(first, text), TextDelta(second, more)) if first == second and len(text) < MERGED_CHARS:
            return TextDelta(first, text + more)
        case (ToolInputDelta(first, text), ToolInputDelta(second, more)) if first == second and len(text) < MERGED_CHARS:
            return ToolInputDelta(first, text + more)
        case (ReasoningSummaryDelta(first, text, part), ReasoningSummaryDelta(second, more, other)) if (
            first == second and part == other and len(text) < MERGED_CHARS
        ):
            return ReasoningSummaryDelta(first, text + more, part)
        case _:
            return None


def is_token(event: ModelEvent) -> bool:
    """Whether the model has begun to answer with this event."""
    return isinstance(event, ItemAdded | ItemDone | TextDelta | ReasoningSummaryDelta | ToolInputDelta)
