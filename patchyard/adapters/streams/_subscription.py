"""One subscriber: a snapshot, then what the hub hands over, without a gap and without a double."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator

from ._frames import EventFrame, frame_of_line, frame_of_text
from ._source import EventSource, Fired, History, Page, Text
from .errors import HistoryUnavailable

PAGE = 256
"""Records per read of the snapshot."""
RETRY_S = 0.3
"""Pause before a failed read is tried again."""
HISTORY_PATIENCE_S = 20.0
"""A rollout that can't be read for so long ends the subscription with an error, so that its client sees why it gets nothing."""
TERMINAL = frozenset({"turn_completed", "turn_interrupted", "turn_failed", "turn_parked"})
"""After these no item is open."""


def position_key(position: str) -> tuple[int, int]:
    """Order of positions in a stream."""
    milliseconds, _, number = position.partition("-")
    return int(milliseconds), int(number or 0)


class Subscription:
    """State of one subscriber. `offer` never blocks; too much of it makes the subscriber read the stream again."""

    def __init__(self, source: EventSource, history: History | None, thread_id: str, after: int | None, size: int) -> None:
        self.thread_id = thread_id
        self._source = source
        self._history = history
        self._last = -1 if after is None else after
        self._size = size
        self._queue: deque[Fired] = deque()
        self._behind = True
        self._ended = False
        self._news = asyncio.Event()
        self._covered = (0, 0)
        self._sent: dict[tuple[str, int], int] = {}

    def offer(self, entry: Fired) -> None:
        """Take an entry of the firehose. While the stream is about to be read anyway, it is not needed."""
        if self._behind:
            return
        if len(self._queue) >= self._size:
            self.resume()
            return
        self._queue.append(entry)
        self._news.set()

    def resume(self) -> None:
        """Something may have been missed: read the stream again from the last record."""
        self._behind = True
        self._queue.clear()
        self._news.set()

    def end(self) -> None:
        """No more events."""
        self._ended = True
        self._news.set()

    async def frames(self) -> AsyncIterator[EventFrame]:
        """The events, until the thread is closed or the hub ends. HistoryUnavailable."""
        while not self._ended:
            if self._behind:
                async for frame in self._catch_up():
                    yield frame
            while self._queue and not self._ended:
                entry = self._queue.popleft()
                if entry.ordinal is not None and entry.line is None:
                    async for frame in self._fetch(entry.ordinal):
                        yield frame
                    continue
                shown = self._show(entry)
                if shown is not None:
                    yield shown
            if not self._behind and not self._queue and not self._ended:
                self._news.clear()
                await self._news.wait()

    async def _catch_up(self) -> AsyncIterator[EventFrame]:
        """Records after the last one, then the texts that are open now. What arrives meanwhile waits in the queue."""
        self._behind = False
        while not self._ended:
            page = await self._page(self._last, PAGE)
            if page is None:
                return
            if self._history is not None and page.trimmed_through is not None and page.trimmed_through > self._last:
                async for frame in self._from_history(self._history, page.tenant_id, page.trimmed_through):
                    yield frame
            for line in page.lines:
                shown = self._record(page.tenant_id, line.ordinal, line.json)
                if shown is not None:
                    yield shown
            if page.complete:
                self._covered = position_key(page.position)
                for shown in self._texts(page):
                    yield shown
                if page.closed:
                    self._ended = True
                return

    async def _page(self, after: int, limit: int) -> Page | None:
        """Read until it succeeds; None when the hub ended meanwhile."""
        while not self._ended:
            try:
                return await self._source.snapshot(self.thread_id, after=after if after >= 0 else None, limit=limit)
            except Exception:  # noqa: BLE001 - whatever is wrong with the server, its restart must not end a subscription
                await self._pause()
        return None

    async def _from_history(self, history: History, tenant_id: str, through: int) -> AsyncIterator[EventFrame]:
        """Records that were trimmed, from the rollout."""
        until = time.monotonic() + HISTORY_PATIENCE_S
        cause: Exception | None = None
        while self._last < through and not self._ended:
            if time.monotonic() > until:
                raise HistoryUnavailable(self.thread_id) from cause
            try:
                async for line in history(tenant_id, self.thread_id, self._last if self._last >= 0 else None, through):
                    shown = self._record(tenant_id, line.ordinal, line.json)
                    if shown is not None:
                        yield shown
            except Exception as error:  # noqa: BLE001 - a store that is away for a moment is read again
                cause = error
            if self._last < through:
                await self._pause()

    async def _fetch(self, ordinal: int) -> AsyncIterator[EventFrame]:
        """A record that was too big for the firehose."""
        if ordinal <= self._last:
            return
        page = await self._page(ordinal - 1, 1)
        if page is None:
            return
        if not page.lines or page.lines[0].ordinal != ordinal:
            self.resume()
            return
        shown = self._record(page.tenant_id, ordinal, page.lines[0].json)
        if shown is not None:
            yield shown

    def _show(self, entry: Fired) -> EventFrame | None:
        if position_key(entry.id) <= self._covered:
            return None
        if entry.ordinal is not None and entry.line is not None:
            return self._record(entry.tenant_id, entry.ordinal, entry.line)
        return self._text(entry)

    def _record(self, tenant_id: str, ordinal: int, line: bytes) -> EventFrame | None:
        if ordinal <= self._last:
            return None
        self._last = ordinal
        frame = frame_of_line(tenant_id, self.thread_id, ordinal, line)
        if frame is not None and frame.type in TERMINAL:
            self._sent.clear()
        if frame is not None and frame.type == "thread_closed":
            self._ended = True
        return frame

    def _texts(self, page: Page) -> Iterator[EventFrame]:
        for text in page.open_texts:
            shown = self._text(text)
            if shown is not None:
                yield shown

    def _text(self, text: Text | Fired) -> EventFrame | None:
        """What of a text this subscriber has not seen yet."""
        if text.text is None:
            return frame_of_text(text, 0)
        name = (text.item_key, text.fence)
        seen = self._sent.get(name, 0)
        end = text.offset + len(text.text)
        if end <= seen:
            return None
        self._sent[name] = end
        return frame_of_text(text, max(0, seen - text.offset))

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(RETRY_S):
                while not self._ended:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            pass
