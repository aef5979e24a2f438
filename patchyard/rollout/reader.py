"""Reads a thread's segments forward: every record once, in order, whatever crash and adoption left behind."""

import heapq
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import NamedTuple

from .errors import OrdinalGap
from .lines import split_segment
from .ports import SegmentStore, StoredLine
from .segments import Segment, parse_key

RELISTS = 64
"""A merge may move what was just listed, and a listing is not one moment. So many in one read mean that something is wrong."""


async def list_segments(store: SegmentStore, prefix: str) -> list[Segment]:
    """The thread's segments by first ordinal."""
    found = [parse_key(key) for key in await store.list(prefix)]
    return sorted((segment for segment in found if segment is not None), key=lambda s: (s.first, s.key))


async def read_batches(store: SegmentStore, prefix: str, *, start: int = 0) -> AsyncIterator[Sequence[StoredLine]]:
    """The records from ordinal `start` on, in batches as they are stored. OrdinalGap when one is missing before a later one."""
    position = start
    before: list[Segment] | None = None
    for _ in range(RELISTS):
        segments = await list_segments(store, prefix)
        plan = _Plan(segments, position)
        if segments == before:
            # Nothing has changed since all of it was read, so this is the end, or a hole that stays.
            plan.check_end(prefix)
            return
        before = segments
        while (step := plan.next()) is not None:
            data = await store.read(step.key)
            if data is None:
                # Merged meanwhile: list again and go on from here.
                before = None
                break
            new = take_new(split_segment(data), position, step.key)
            if new:
                position = new[-1].ordinal + 1
                plan.advance(position)
                yield new
    raise OrdinalGap(position, position, f"{prefix} (its segments keep changing)")


async def read_lines(store: SegmentStore, prefix: str, *, start: int = 0) -> AsyncIterator[StoredLine]:
    """The records from ordinal `start` on. OrdinalGap."""
    async for batch in read_batches(store, prefix, start=start):
        for line in batch:
            yield line


def take_new(lines: Iterable[StoredLine], position: int, key: str) -> list[StoredLine]:
    """The lines of a segment from `position` on. OrdinalGap when they are not continuous."""
    new: list[StoredLine] = []
    for line in lines:
        if line.ordinal < position:
            continue
        expected = position + len(new)
        if line.ordinal != expected:
            raise OrdinalGap(expected, line.ordinal, key)
        new.append(line)
    return new


class _Open(NamedTuple):
    order: int
    segment: Segment


class _Plan:
    """Which segment to read next: of those that begin at or before the position, the merged one that reaches furthest."""

    def __init__(self, segments: Sequence[Segment], position: int) -> None:
        self._ahead = list(reversed(segments))
        self._merged: list[_Open] = []
        self._single: list[Segment] = []
        self._position = position
        self.advance(position)

    def advance(self, position: int) -> None:
        self._position = position
        while self._ahead and self._ahead[-1].first <= position:
            segment = self._ahead.pop()
            if segment.last is None:
                self._single.append(segment)
            elif segment.last >= position:
                heapq.heappush(self._merged, _Open(-segment.last, segment))

    def next(self) -> Segment | None:
        while self._merged:
            segment = heapq.heappop(self._merged).segment
            if segment.last is not None and segment.last >= self._position:
                return segment
        # The newest of the others first: it is the one that goes on, unless a crash left an overlap.
        return self._single.pop() if self._single else None

    def check_end(self, prefix: str) -> None:
        """OrdinalGap when something lies behind the end."""
        if self._ahead:
            raise OrdinalGap(self._position, self._ahead[-1].first, prefix)
