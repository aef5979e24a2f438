"""Reads a thread's records from the newest back: recovery needs only the end of a long thread."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from .errors import OrdinalGap
from .lines import number_line, split_segment
from .ports import SegmentStore, StoredLine
from .reader import RELISTS, list_segments, take_new
from .segments import Segment

_FIRST_BLOCK = 8 << 10
_LARGEST_BLOCK = 64 << 10
"""Bytes of one read. It begins small, since the answer is often in the last few lines, and doubles."""


async def scan_back(store: SegmentStore, key: str) -> AsyncIterator[bytes]:
    """The raw lines of one segment, last first, without newlines and blank ones. None when it does not exist."""
    end: int | None = None
    size = _FIRST_BLOCK
    # Pieces of the line whose beginning has not been read yet, last piece first.
    open_line: list[bytes] = []
    while end is None or end > 0:
        piece = await store.read_before(key, end, size)
        if piece is None or not piece.data:
            break
        end = piece.start
        size = min(size * 2, _LARGEST_BLOCK)
        head, *rest = piece.data.split(b"\n")
        if not rest:
            open_line.append(head)
            continue
        open_line.append(rest.pop())
        for raw in (_joined(open_line), *reversed(rest)):
            if raw.strip():
                yield raw
        open_line = [head]
    if (raw := _joined(open_line)).strip():
        yield raw


def _joined(pieces: list[bytes]) -> bytes:
    return b"".join(reversed(pieces))


async def read_back(store: SegmentStore, prefix: str, *, below: int | None = None) -> AsyncIterator[StoredLine]:
    """A thread's records with ordinals less than `below` (None: all), newest first, each once.

    OrdinalGap when one is missing among them or before `below`. Without `below`, a torn or invalid end of the newest segment
    is skipped: it was never confirmed.
    """
    found = await (_find if below is not None else _find_settled)(store, prefix)
    position = found.end if below is None else below - 1
    newest = below is None
    while position >= 0:
        if position in found.loose:
            yield found.loose[position]
            position -= 1
            newest = False
            continue
        segment = _covering(found.merged, position)
        if segment is None:
            # A listing is not one moment: a merge may have moved the record past it.
            again = await _find(store, prefix)
            if again == found:
                raise OrdinalGap(position, found.below(position), prefix)
            found = again
            continue
        async for line in _segment_back(store, segment, position, newest=newest):
            yield line
            position = line.ordinal - 1
            newest = False
        if position >= segment.first:
            raise OrdinalGap(position, segment.first, segment.key)


@dataclass(frozen=True)
class _Found:
    """What a thread has in the store."""

    merged: list[Segment]
    loose: dict[int, StoredLine]
    """Records of segments that are not merged: few and small, so they are read whole; their names do not tell their end."""

    @property
    def end(self) -> int:
        """Highest ordinal; -1: none."""
        return max([-1, *self.loose, *(segment.last for segment in self.merged if segment.last is not None)])

    def below(self, position: int) -> int:
        """Highest ordinal below a position; -1: none."""
        return max([-1, *(n for n in self.loose if n < position), *(s.first for s in self.merged if s.first < position)])


async def _find(store: SegmentStore, prefix: str) -> _Found:
    for _ in range(RELISTS):
        segments = await list_segments(store, prefix)
        loose = await _read_loose(store, [segment for segment in segments if not segment.merged])
        if loose is not None:
            return _Found([segment for segment in segments if segment.merged], loose)
    raise OrdinalGap(0, 0, f"{prefix} (its segments keep changing)")


async def _find_settled(store: SegmentStore, prefix: str) -> _Found:
    """As `_find`, looked at twice: who does not know the end must not take a listing that missed a merge for it."""
    found = await _find(store, prefix)
    for _ in range(RELISTS):
        again = await _find(store, prefix)
        if again == found:
            break
        found = again
    return found


async def _read_loose(store: SegmentStore, segments: list[Segment]) -> dict[int, StoredLine] | None:
    lines: dict[int, StoredLine] = {}
    for segment in segments:
        data = await store.read(segment.key)
        if data is None:
            # Merged meanwhile.
            return None
        for line in take_new(split_segment(data), segment.first, segment.key):
            lines.setdefault(line.ordinal, line)
    return lines


def _covering(merged: list[Segment], position: int) -> Segment | None:
    found = [segment for segment in merged if segment.last is not None and segment.first <= position <= segment.last]
    return min(found, key=lambda segment: segment.first, default=None)


async def _segment_back(store: SegmentStore, segment: Segment, position: int, *, newest: bool) -> AsyncIterator[StoredLine]:
    async for raw in scan_back(store, segment.key):
        line = number_line(raw)
        if line is None or line.ordinal > position:
            continue
        if line.ordinal < position and not newest:
            raise OrdinalGap(position, line.ordinal, segment.key)
        newest = False
        position = line.ordinal - 1
        yield line
