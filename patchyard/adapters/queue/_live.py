"""Live texts: deltas are joined, numbered by their place in the item's text, and sent for many threads in one call."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, assert_never

from pydantic_core import to_json

from patchyard.protocol.events import (
    AgentMessageDelta,
    ExecOutputDelta,
    LiveMsg,
    PatchProgress,
    ReasoningDelta,
    SetupOutputDelta,
    ToolCallInputDelta,
)

from ._backend import Backend
from ._encode import dump, escape
from .errors import QueueError

if TYPE_CHECKING:
    from ._channel import QueueThreadChannel

COALESCE_S = 0.04
"""Longest wait of a delta before it is sent. Decided limit: 50 ms, less the time of the call itself."""
COALESCE_DELTAS = 20
"""So many deltas are sent at once without waiting."""
STORED_BYTES = 256 * 1024
"""Text of one open item that is kept for those who join late; then it begins anew."""


@dataclass
class _Entry:
    item_key: str
    offset: int
    head: bytes
    pieces: list[bytes]
    restart: bool
    whole: bool
    """True: `head` is a whole event that replaces its predecessor."""


@dataclass
class LiveBatch:
    """What is shown next, in order."""

    entries: list[_Entry] = field(default_factory=list)

    def args(self) -> list[dict[str, Any]]:
        """Named values for the scripts."""
        return [
            {"k": e.item_key, "o": e.offset} | ({"n": 1} if e.whole else {}) | ({"r": 1} if e.restart else {})
            for e in self.entries
        ]

    def blobs(self) -> list[bytes]:
        """Head and text of each entry."""
        return [part for e in self.entries for part in (e.head, b"".join(e.pieces))]


class LiveBuffer:
    """Deltas of one thread that were not sent yet, and where each open item's text stands."""

    def __init__(self, tenant_id: str, thread_id: str) -> None:
        self._start = b'{"tenant_id":' + to_json(tenant_id) + b',"thread_id":' + to_json(thread_id)
        self._batch = LiveBatch()
        self._ends: dict[str, int] = {}
        self._starts: dict[str, int] = {}
        self._items: dict[str, str] = {}
        self.deltas = 0

    def add(self, msg: LiveMsg, turn_id: str | None) -> None:
        """Append one message; joins it with its predecessor where both belong to the same item."""
        self.deltas += 1
        item, opening, delta = _parts(msg)
        item_key = f"{msg.type}:{item}"
        self._items[item_key] = item
        if opening is None:
            head = self._head(turn_id) + dump(msg) + b"}"
            self._batch.entries.append(_Entry(item_key, 0, head, [], restart=False, whole=True))
            return
        text = escape(delta)
        last = self._batch.entries[-1] if self._batch.entries else None
        if last is not None and last.item_key == item_key:
            last.pieces.append(text)
        else:
            self._batch.entries.append(self._open(item_key, self._head(turn_id) + opening, text))
        self._ends[item_key] = self._ends.get(item_key, 0) + len(text)

    def take(self) -> LiveBatch:
        """All that waits; the buffer is empty afterwards."""
        batch, self._batch, self.deltas = self._batch, LiveBatch(), 0
        return batch

    def put_back(self, batch: LiveBatch) -> None:
        """Undo a `take` that was not sent."""
        self._batch.entries[:0] = batch.entries

    def mark_gap(self) -> None:
        """A batch was lost on its way: stored texts begin anew with the next delta of each item."""
        for item_key in self._ends:
            self._starts[item_key] = -STORED_BYTES

    def close(self, items: Sequence[str] | None) -> list[str]:
        """Forget open items (None: all); answers their keys."""
        wanted = None if items is None else set(items)
        closed = [key for key, item in self._items.items() if wanted is None or item in wanted]
        for key in closed:
            self._items.pop(key)
            self._ends.pop(key, None)
            self._starts.pop(key, None)
        return closed

    def _open(self, item_key: str, head: bytes, text: bytes) -> _Entry:
        offset = self._ends.get(item_key, 0)
        start = self._starts.setdefault(item_key, offset)
        restart = offset + len(text) - start > STORED_BYTES
        if restart:
            self._starts[item_key] = offset
        return _Entry(item_key, offset, head, [text], restart=restart, whole=False)

    def _head(self, turn_id: str | None) -> bytes:
        return self._start + b',"ordinal":null,"submission_id":null,"turn_id":' + to_json(turn_id) + b',"msg":'


def _parts(msg: LiveMsg) -> tuple[str, bytes | None, str]:
    """Item, the message's JSON up to the inside of its delta (None: the message has no delta), and the delta."""
    match msg:
        case AgentMessageDelta() | ReasoningDelta() | ExecOutputDelta():
            names: dict[str, str] = {"type": msg.type, "item_id": msg.item_id}
            return msg.item_id, _opening(names), msg.delta
        case ToolCallInputDelta():
            names = {"type": msg.type, "item_id": msg.item_id, "name": msg.name}
            return msg.item_id, _opening(names), msg.delta
        case SetupOutputDelta():
            return msg.phase, _opening({"type": msg.type, "phase": msg.phase}), msg.delta
        case PatchProgress():
            return msg.item_id, None, ""
        case _:
            assert_never(msg)


def _opening(names: dict[str, str]) -> bytes:
    return to_json(names)[:-1] + b',"delta":"'


class LiveFlusher:
    """Sends the live texts of all threads of this process. A thread that is just committing waits, so that order is kept."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._waiting: dict[str, QueueThreadChannel] = {}
        self._urgent = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def note(self, channel: "QueueThreadChannel") -> None:
        """A channel has something to show."""
        self._waiting[channel.thread_id] = channel
        if channel.live_buffer.deltas >= COALESCE_DELTAS:
            self._urgent.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop; what was not sent is lost, as live texts may be."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while self._waiting:
            try:
                async with asyncio.timeout(COALESCE_S):
                    await self._urgent.wait()
            except TimeoutError:
                pass
            self._urgent.clear()
            await self._flush()

    async def _flush(self) -> None:
        """Send what waits in channels that are not committing; those carry their texts along themselves."""
        free = [channel for channel in self._waiting.values() if not channel.lock.locked()]
        for channel in free:
            await channel.lock.acquire()
            del self._waiting[channel.thread_id]
        try:
            await self._send(free)
        finally:
            for channel in free:
                channel.lock.release()

    async def _send(self, channels: "Sequence[QueueThreadChannel]") -> None:
        batches: list[list[Any]] = []
        blobs: list[bytes] = []
        for channel in channels:
            batch = channel.live_buffer.take()
            if batch.entries:
                batches.append([channel.thread_id, str(channel.fence), batch.args()])
                blobs.extend(batch.blobs())
        if not batches:
            return
        try:
            # One try only: a repeated call would show the same text twice, and there is more text coming.
            await self._backend.run("publish_live", {"batches": batches}, blobs, retry=False)
        except QueueError:
            for channel in channels:
                channel.live_buffer.mark_gap()
