"""Finds what recovery needs of a thread: reads back from the end, and stops as soon as it has enough."""

from collections.abc import Iterable, Sequence

from patchyard.protocol.events import TokenCount, TurnStarted
from patchyard.protocol.rollout_lines import (
    CompactedLine,
    EventMsgLine,
    RolloutLine,
    SessionMetaLine,
    TurnContextLine,
)

from .errors import OrdinalGap
from .lines import decode_line
from .ports import SegmentStore
from .reader import read_lines
from .restore import RestoredThread, restore
from .reverse import read_back
from .segments import thread_prefix


class RestoreWindow:
    """Collects a thread's lines, newest first, until `restore` would not change with more of them (but the session's meta)."""

    def __init__(self) -> None:
        self._back: list[RolloutLine] = []
        self._compacted = False
        self._settings = False
        self._context = False
        self._turn_known = False
        self._tokens = False
        self._meta = False

    def add(self, line: RolloutLine) -> None:
        """The line before those that were added."""
        self._back.append(line)
        match line:
            case CompactedLine():
                self._compacted = True
            case TurnContextLine():
                self._settings = True
            case SessionMetaLine():
                self._meta = True
            case EventMsgLine():
                # Nothing before the newest turn's beginning belongs to an open turn, or was left open by one that has ended.
                begins = isinstance(line.payload, TurnStarted)
                # What was changed for later turns while a turn began stands before its settings.
                self._context = self._context or (begins and self._settings)
                self._turn_known = self._turn_known or begins
                self._tokens = self._tokens or isinstance(line.payload, TokenCount)
            case _:
                pass

    @property
    def enough(self) -> bool:
        """Whether older lines add nothing but the session's meta."""
        return self._compacted and self._context and self._turn_known and self._tokens

    @property
    def has_meta(self) -> bool:
        """Whether the session's meta is among the lines."""
        return self._meta

    @property
    def first(self) -> int | None:
        """Lowest ordinal so far; None: no line yet."""
        return self._back[-1].ordinal if self._back else None

    def lines(self) -> list[RolloutLine]:
        """The lines, oldest first."""
        return self._back[::-1]


async def load_thread(
    store: SegmentStore,
    tenant_id: str,
    thread_id: str,
    tail: Sequence[RolloutLine] = (),
    *,
    next_ordinal: int | None = None,
) -> RestoredThread:
    """Restore a thread from its segments and the `tail` of committed lines that the queue still holds, oldest first.

    The tail may overlap the store. `next_ordinal` is how many records the thread has, where the caller knows it. OrdinalGap
    when records are missing between both, inside one, or at the end.
    """
    prefix = thread_prefix(tenant_id, thread_id)
    window = RestoreWindow()
    end = tail[-1].ordinal + 1 if tail else next_ordinal
    if next_ordinal is not None and end is not None and end < next_ordinal:
        raise OrdinalGap(end, next_ordinal, f"the queue's records of {prefix}")
    if not _take(window, reversed(tail)) and window.first != 0:
        below = window.first if window.first is not None else end
        async for stored in read_back(store, prefix, below=below):
            if _take(window, [decode_line(stored.json)]):
                break
    head = await _meta(store, prefix, tail) if window.enough and not window.has_meta else []
    return restore([*head, *window.lines()])


def _take(window: RestoreWindow, lines: Iterable[RolloutLine]) -> bool:
    """Add lines, newest first, while they add something; answers whether it is enough."""
    for line in lines:
        if window.enough:
            break
        window.add(line)
    return window.enough


async def _meta(store: SegmentStore, prefix: str, tail: Sequence[RolloutLine]) -> list[RolloutLine]:
    """The session's meta: one of the first lines, behind those that were written before a worker came."""
    for line in tail:
        if isinstance(line, SessionMetaLine):
            return [line]
    async for stored in read_lines(store, prefix):
        line = decode_line(stored.json)
        if isinstance(line, SessionMetaLine):
            return [line]
    return []
