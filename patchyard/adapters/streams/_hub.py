"""One reader of the firehose for all subscribers of a process."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence

from ._frames import EventFrame
from ._source import EventSource, Fired, History
from ._subscription import RETRY_S, Subscription, position_key

QUEUE_SIZE = 1000
"""Entries that wait for one subscriber; a slower one reads the stream instead."""
LAG_CHECK = 500
"""A read with so many entries means that the reader is behind, and may have missed what was trimmed meanwhile."""

log = logging.getLogger(__name__)


class EventHub:
    """Snapshot, then live, for any number of subscribers over one connection. For one event loop."""

    def __init__(self, source: EventSource, *, history: History | None = None, queue_size: int = QUEUE_SIZE) -> None:
        self._source = source
        self._history = history
        self._queue_size = queue_size
        self._subscriptions: dict[str, set[Subscription]] = {}
        self._reader: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start reading. A source that is away now is waited for in the background."""
        if self._reader is None:
            self._reader = asyncio.get_running_loop().create_task(self._read())

    async def close(self) -> None:
        """End all subscriptions and the reader."""
        for subscription in self._all():
            subscription.end()
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
            self._reader = None

    async def subscribe(self, thread_id: str, *, after: int | None = None) -> AsyncGenerator[EventFrame, None]:
        """Events of a thread after an ordinal (None: from the first record). Close the iterator to unsubscribe.

        The first delta of an item that is open on arrival carries its text so far.
        Ends when the thread or the hub is closed. HistoryUnavailable.
        """
        subscription = Subscription(self._source, self._history, thread_id, after, self._queue_size)
        self._subscriptions.setdefault(thread_id, set()).add(subscription)
        try:
            async for frame in subscription.frames():
                yield frame
        finally:
            self._forget(subscription)

    @property
    def subscribers(self) -> int:
        """Open subscriptions."""
        return sum(len(group) for group in self._subscriptions.values())

    def _forget(self, subscription: Subscription) -> None:
        group = self._subscriptions.get(subscription.thread_id, set())
        group.discard(subscription)
        if not group:
            self._subscriptions.pop(subscription.thread_id, None)

    def _all(self) -> list[Subscription]:
        return [subscription for group in self._subscriptions.values() for subscription in group]

    async def _read(self) -> None:
        """Until cancelled. After every doubt whether something was missed, all subscribers read their streams again."""
        position: str | None = None
        while True:
            try:
                if position is None:
                    position = await self._source.fire_position()
                    self._resume_all()
                entries = await self._source.read_fire(position)
                if len(entries) >= LAG_CHECK and position_key(await self._source.fire_oldest()) > position_key(position):
                    self._resume_all()
            except Exception as error:  # noqa: BLE001 - whatever the source fails with, the answer is to read on from the record
                if position is not None:
                    log.warning("event streams: the server does not answer, trying again: %s", error)
                position = None
                await asyncio.sleep(RETRY_S)
                continue
            if entries:
                position = entries[-1].id
                self._dispatch(entries)

    def _dispatch(self, entries: Sequence[Fired]) -> None:
        for entry in entries:
            for subscription in self._subscriptions.get(entry.thread_id, ()):
                subscription.offer(entry)

    def _resume_all(self) -> None:
        for subscription in self._all():
            subscription.resume()
