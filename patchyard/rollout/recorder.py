"""Turns a thread's committed lines into segments. Any number of recorders, alive or half-dead, may work on one thread."""

from collections.abc import Sequence

from .errors import OrdinalGap, SegmentConflict
from .lines import split_segment
from .ports import NumberedLine, SegmentStore, StoredLine
from .reader import RELISTS, list_segments, read_batches, take_new
from .segments import Segment, segment_key, thread_prefix

MERGE_AT = 64
"""Unmerged segments of one thread. More of them make reading and listing slow, so a turn of hours is merged in between."""
_SEGMENT_BYTES = 8 << 20
"""A segment is cut behind this size, so that no object (and no read of one) grows without bound."""
_MERGED_BYTES = 16 << 20
"""A merged segment is cut behind this size for the same reason."""


class SegmentRecorder:
    """Writes one thread's segments. A record is confirmed when `append` has returned; it may be trimmed from the queue then.

    Records are the same for everybody (the queue numbers them), so whoever finds a segment that is there adopts it. A loose
    segment is removed by merges only, after a merged one that holds its records is there, and merged ones stay. So a loose
    segment counts as stored only if, seen after it was there, no merged one covers its beginning: otherwise it was written
    late over a name that a merge had freed, and another merge may be about to remove it.
    """

    def __init__(self, store: SegmentStore, tenant_id: str, thread_id: str) -> None:
        self._store = store
        self.prefix = thread_prefix(tenant_id, thread_id)
        self._next: int | None = None
        self._loose = 0

    async def stored_through(self) -> int:
        """Highest ordinal in the store without a gap before it; -1: none. Looks it up at the first call only."""
        return await self._position() - 1

    async def append(self, lines: Sequence[NumberedLine]) -> int:
        """Store the lines that are not stored yet; answers the highest stored ordinal, -1 for none.

        OrdinalGap: lines between the stored ones and these are missing; nothing was written. SegmentConflict: a stored record
        differs from the committed one.
        """
        position = await self._position()
        if lines and lines[0].ordinal > position:
            # Somebody else may have gone on since we looked.
            position = await self._look_up()
        for expected, line in enumerate((line for line in lines if line.ordinal >= position), start=position):
            if line.ordinal != expected:
                raise OrdinalGap(expected, line.ordinal, self.prefix)
        while todo := [line for line in lines if line.ordinal >= await self._position()]:
            if todo[0].ordinal != self._next:
                raise OrdinalGap(await self._position(), todo[0].ordinal, self.prefix)
            await self._write(_cut(todo))
        if self._loose >= MERGE_AT:
            await self.merge()
        return await self._position() - 1

    async def merge(self) -> None:
        """Put the loose segments together into one; call it when a turn has ended. Nothing is lost when it dies half-way."""
        segments = await list_segments(self._store, self.prefix)
        loose = [segment for segment in segments if not segment.merged]
        self._loose = len(loose)
        if not loose:
            return
        start = 0
        while (last := covered_through(segments, start)) is not None:
            start = last + 1
        lines: list[StoredLine] = []
        size = 0
        async for batch in read_batches(self._store, self.prefix, start=start):
            lines += batch
            size += sum(len(line.json) for line in batch)
            if size >= _MERGED_BYTES:
                await self._write_merged(lines)
                lines, size = [], 0
        if lines:
            await self._write_merged(lines)
        # All of what was listed before reading was read; what came later stays.
        await self._store.delete([segment.key for segment in loose])
        self._loose = 0

    async def _position(self) -> int:
        return await self._look_up() if self._next is None else self._next

    async def _look_up(self) -> int:
        """Follow the merged segments and then the loose ones that go on exactly behind each other."""
        for _ in range(RELISTS):
            segments = await list_segments(self._store, self.prefix)
            position = await self._follow(segments)
            if position is not None:
                self._loose, self._next = sum(not segment.merged for segment in segments), position
                return position
        raise OrdinalGap(0, 0, f"{self.prefix} (its segments keep changing)")

    async def _follow(self, segments: Sequence[Segment]) -> int | None:
        """Where the segments end; None: one of them was merged meanwhile."""
        loose = {segment.first: segment for segment in segments if not segment.merged}
        position = 0
        while True:
            if (last := covered_through(segments, position)) is not None:
                position = last + 1
            elif (segment := loose.get(position)) is not None:
                data = await self._store.read(segment.key)
                if data is None:
                    return None
                there = take_new(split_segment(data), position, segment.key)
                if not there:
                    return position
                position += len(there)
            else:
                return position

    async def _write(self, lines: Sequence[NumberedLine]) -> None:
        """Store one segment, or adopt the one that is there. Moves the position on."""
        first = lines[0].ordinal
        key = segment_key(self.prefix, first)
        stored = len(lines)
        if await self._store.create(key, _encode(lines)):
            self._loose += 1
        else:
            data = await self._store.read(key)
            there = take_new(split_segment(data or b""), first, key)
            for mine, theirs in zip(lines, there, strict=False):
                if mine.json.strip() != theirs.json.strip():
                    raise SegmentConflict(mine.ordinal, key)
            if data is not None and not there:
                # Nothing readable in it (no store of ours leaves such a thing). It must not block the thread for ever, and
                # removing it could hit somebody's good segment: the other form of the name is free, and readers prefer it.
                await self._write_merged(lines)
            else:
                stored = len(there)
        if covered_through(await list_segments(self._store, self.prefix), first) is not None:
            await self._look_up()
        else:
            self._next = first + stored

    async def _write_merged(self, lines: Sequence[NumberedLine]) -> None:
        key = segment_key(self.prefix, lines[0].ordinal, lines[-1].ordinal)
        data = _encode(lines)
        if not await self._store.create(key, data) and await self._store.read(key) != data:
            raise SegmentConflict(lines[0].ordinal, key)


def covered_through(segments: Sequence[Segment], ordinal: int) -> int | None:
    """Last ordinal of the merged segment that holds a record and reaches furthest; None: no merged one holds it."""
    return max((s.last for s in segments if s.last is not None and s.first <= ordinal <= s.last), default=None)


def _cut(lines: Sequence[NumberedLine]) -> Sequence[NumberedLine]:
    size = 0
    for count, line in enumerate(lines):
        size += len(line.json) + 1
        if size > _SEGMENT_BYTES and count:
            return lines[:count]
    return lines


def _encode(lines: Sequence[NumberedLine]) -> bytes:
    return b"".join(line.json.rstrip(b"\n") + b"\n" for line in lines)
