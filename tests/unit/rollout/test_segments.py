"""Recording, reading forward and reading back over segments, with the crashes that happen between."""

import asyncio
from collections.abc import Sequence

import pytest

from patchyard.adapters.store import StoredSegments, StoreUnavailable
from patchyard.protocol.ids import new_id
from patchyard.rollout import (
    OrdinalGap,
    Segment,
    SegmentConflict,
    SegmentRecorder,
    StoredLine,
    parse_key,
    read_back,
    read_lines,
    scan_back,
    segment_key,
    thread_prefix,
)
from patchyard.rollout.recorder import MERGE_AT
from patchyard.testing.store import MemoryStore

THREAD = new_id(1_790_000_000_000)
PREFIX = f"default/rollouts/2026/09/21/{THREAD}/"


def line(ordinal: int, text: str = "x") -> StoredLine:
    return StoredLine(ordinal, b'{"ordinal":%d,"text":"%s"}' % (ordinal, text.encode()))


LINES = [line(number, "y" * (number % 7) * 100) for number in range(200)]


def recorder(segments: StoredSegments) -> SegmentRecorder:
    return SegmentRecorder(segments, "default", THREAD)


async def forward(segments: StoredSegments, start: int = 0) -> list[StoredLine]:
    return [found async for found in read_lines(segments, PREFIX, start=start)]


async def back(segments: StoredSegments, below: int | None = None) -> list[StoredLine]:
    return [found async for found in read_back(segments, PREFIX, below=below)]


def names(memory: MemoryStore) -> list[str]:
    return [key.removeprefix(PREFIX) for key in sorted(memory.objects)]


def test_keys_tell_the_day_of_the_thread_and_sort_as_numbers() -> None:
    assert thread_prefix("default", THREAD) == PREFIX
    assert segment_key(PREFIX, 12) == f"{PREFIX}00000000000000000012.jsonl"
    merged = segment_key(PREFIX, 0, 11)
    assert merged == f"{PREFIX}00000000000000000000-00000000000000000011.jsonl"
    assert parse_key(merged) == Segment(0, 11, merged)
    assert segment_key(PREFIX, 9) < segment_key(PREFIX, 10)
    for other in ("x.jsonl", f"{PREFIX}12.jsonl", f"{PREFIX}{'0' * 20}.json", segment_key(PREFIX, 5, 4), ""):
        assert parse_key(other) is None
    with pytest.raises(ValueError, match="UUID"):
        thread_prefix("default", "not an id")


def test_what_is_appended_reads_forward_and_back(memory: MemoryStore, segments: StoredSegments) -> None:
    async def run() -> None:
        writer = recorder(segments)
        assert await writer.stored_through() == -1
        assert await writer.append([]) == -1
        assert await writer.append(LINES[:3]) == 2
        assert await writer.append(LINES[1:7]) == 6
        assert await writer.append(LINES[:5]) == 6
        assert names(memory) == ["00000000000000000000.jsonl", "00000000000000000003.jsonl"]
        await writer.merge()
        await writer.merge()
        assert names(memory) == ["00000000000000000000-00000000000000000006.jsonl"]
        assert await writer.append(LINES[7:9]) == 8
        for start in range(10):
            assert await forward(segments, start) == LINES[start:9]
            assert await back(segments, start) == LINES[:start][::-1]
        assert await back(segments) == LINES[:9][::-1]

    asyncio.run(run())


def test_a_successor_adopts_what_is_there(memory: MemoryStore, segments: StoredSegments) -> None:
    async def run() -> None:
        first, second = recorder(segments), recorder(segments)
        await first.stored_through()
        await second.append(LINES[:4])
        # `first` still believes that nothing is stored.
        assert await first.append(LINES[:6]) == 5
        assert await second.append(LINES[3:5]) == 5
        assert names(memory) == ["00000000000000000000.jsonl", "00000000000000000004.jsonl"]
        assert await recorder(segments).stored_through() == 5
        assert await forward(segments) == LINES[:6]

    asyncio.run(run())


def test_an_adopted_segment_may_hold_more_than_was_to_be_written(segments: StoredSegments) -> None:
    async def run() -> None:
        slow, fast = recorder(segments), recorder(segments)
        await slow.stored_through()
        await fast.append(LINES[:9])
        assert await slow.append(LINES[:4]) == 8

    asyncio.run(run())


def test_missing_lines_are_never_skipped(memory: MemoryStore, segments: StoredSegments) -> None:
    async def run() -> None:
        writer = recorder(segments)
        for bad in (LINES[1:3], [LINES[0], LINES[2]], [LINES[1], LINES[0]]):
            with pytest.raises(OrdinalGap):
                await writer.append(bad)
        assert memory.objects == {}

    asyncio.run(run())


def test_other_records_under_the_same_number_are_a_conflict(memory: MemoryStore, segments: StoredSegments) -> None:
    async def run() -> None:
        await recorder(segments).append(LINES[:3])
        late = recorder(segments)
        late._next = 0
        before = dict(memory.objects)
        with pytest.raises(SegmentConflict, match="patchyard doctor"):
            await late.append([LINES[0], line(1, "another")])
        assert memory.objects == before

    asyncio.run(run())


def test_a_failing_store_loses_nothing(memory: MemoryStore, segments: StoredSegments) -> None:
    async def run() -> None:
        writer = recorder(segments)
        await writer.append(LINES[:2])
        memory.fail(StoreUnavailable("away"))
        with pytest.raises(StoreUnavailable):
            await writer.append(LINES[2:4])
        assert await writer.append(LINES[2:4]) == 3
        assert await forward(segments) == LINES[:4]
        memory.assert_no_failures_left()

    asyncio.run(run())


def test_a_merge_that_died_before_removing_is_finished_by_the_next(memory: MemoryStore, segments: StoredSegments) -> None:
    async def run() -> None:
        writer = recorder(segments)
        for number in range(5):
            await writer.append(LINES[number : number + 1])
        parts = dict(memory.objects)
        await writer.merge()
        memory.objects.update(parts)
        assert await forward(segments) == LINES[:5]
        assert await back(segments) == LINES[:5][::-1]
        await recorder(segments).append(LINES[5:6])
        await recorder(segments).merge()
        assert names(memory) == [
            "00000000000000000000-00000000000000000004.jsonl",
            "00000000000000000005-00000000000000000005.jsonl",
        ]

    asyncio.run(run())


def test_a_stale_writer_after_a_merge_leaves_an_overlap_that_readers_see_through(
    memory: MemoryStore, segments: StoredSegments
) -> None:
    async def run() -> None:
        stale, other = recorder(segments), recorder(segments)
        await stale.append(LINES[:8])
        await other.append(LINES[:10])
        await other.merge()
        assert await stale.append(LINES[8:13]) == 12
        assert await other.append(LINES[10:12]) == 12
        assert len(memory.objects) == 3
        assert await forward(segments) == LINES[:13]
        assert await back(segments) == LINES[:13][::-1]
        assert await recorder(segments).append(LINES[12:15]) == 14
        await other.merge()
        assert await forward(segments) == LINES[:15]
        assert len(memory.objects) == 2

    asyncio.run(run())


def test_many_small_segments_are_merged_on_the_way(memory: MemoryStore, segments: StoredSegments) -> None:
    async def run() -> None:
        writer = recorder(segments)
        for number in range(MERGE_AT + 5):
            await writer.append(LINES[number : number + 1])
        assert len(memory.objects) == 6
        assert await forward(segments) == LINES[: MERGE_AT + 5]

    asyncio.run(run())


def test_big_threads_are_cut_into_objects_of_bounded_size(memory: MemoryStore, segments: StoredSegments) -> None:
    lines = [line(number, "z" * (1 << 20)) for number in range(40)]

    async def run() -> None:
        writer = recorder(segments)
        assert await writer.append(lines) == 39
        assert len(memory.objects) > 4
        await writer.merge()
        assert all("-" in name for name in names(memory))
        assert max(len(data) for data in memory.objects.values()) < 25 << 20
        assert await forward(segments) == lines
        assert await back(segments) == lines[::-1]

    asyncio.run(run())


def test_a_merge_during_a_read_disturbs_nobody(segments: StoredSegments) -> None:
    async def run() -> None:
        writer = recorder(segments)
        for number in range(6):
            await writer.append(LINES[number : number + 1])
        found: list[StoredLine] = []
        async for one in read_lines(segments, PREFIX):
            found.append(one)
            if one.ordinal == 2:
                await writer.merge()
        assert found == LINES[:6]

    asyncio.run(run())


@pytest.mark.parametrize("torn", [b'{"ordinal":3,"te', b"\x00\x00\x00", b"garbage\n", b""])
def test_a_torn_last_line_is_harmless(memory: MemoryStore, segments: StoredSegments, torn: bytes) -> None:
    async def run() -> None:
        await recorder(segments).append(LINES[:3])
        memory.objects[segment_key(PREFIX, 0)] += torn
        assert await forward(segments) == LINES[:3]
        assert await back(segments) == LINES[:3][::-1]
        assert await recorder(segments).append(LINES[:5]) == 4
        assert await forward(segments) == LINES[:5]
        assert await back(segments) == LINES[:5][::-1]
        merger = recorder(segments)
        await merger.merge()
        assert await forward(segments) == LINES[:5]

    asyncio.run(run())


def test_a_merged_segment_with_a_torn_end_is_read_back_from_its_last_good_line(
    memory: MemoryStore, segments: StoredSegments
) -> None:
    async def run() -> None:
        writer = recorder(segments)
        await writer.append(LINES[:6])
        await writer.merge()
        (key,) = memory.objects
        memory.objects[key] = memory.objects[key][:-10]
        assert await back(segments) == LINES[:5][::-1]
        with pytest.raises(OrdinalGap):
            await back(segments, below=6)

    asyncio.run(run())


@pytest.mark.parametrize("content", [b"", b"\n\n", b"{broken"])
def test_an_unreadable_segment_does_not_block_the_thread(memory: MemoryStore, segments: StoredSegments, content: bytes) -> None:
    async def run() -> None:
        await recorder(segments).append(LINES[:2])
        memory.objects[segment_key(PREFIX, 2)] = content
        assert await forward(segments) == LINES[:2]
        assert await recorder(segments).append(LINES[:5]) == 4
        assert await recorder(segments).append(LINES[4:6]) == 5
        assert await forward(segments) == LINES[:6]
        assert await back(segments) == LINES[:6][::-1]

    asyncio.run(run())


def test_a_lost_segment_is_a_gap_and_not_an_end(memory: MemoryStore, segments: StoredSegments) -> None:
    async def run() -> None:
        writer = recorder(segments)
        for start in (0, 3, 6):
            await writer.append(LINES[start : start + 3])
        del memory.objects[segment_key(PREFIX, 3)]
        with pytest.raises(OrdinalGap):
            await forward(segments)
        with pytest.raises(OrdinalGap):
            await back(segments)
        with pytest.raises(OrdinalGap):
            await recorder(segments).append(LINES[9:10])

    asyncio.run(run())


def test_things_that_are_no_segments_are_left_alone(memory: MemoryStore, segments: StoredSegments) -> None:
    async def run() -> None:
        await memory.put(f"{PREFIX}notes.txt", b"hello")
        writer = recorder(segments)
        await writer.append(LINES[:2])
        await writer.merge()
        assert await forward(segments) == LINES[:2]
        assert memory.objects[f"{PREFIX}notes.txt"] == b"hello"

    asyncio.run(run())


def _content(kind: str) -> Sequence[bytes]:
    match kind:
        case "one long line":
            return [b"x" * 300_000]
        case "many short lines":
            return [b"%d" % number for number in range(40_000)]
        case "lines around the block size":
            return [b"a" * size for size in (8191, 8192, 8193, 16384, 65535, 65536, 65537, 1, 131072)]
        case _:
            return []


@pytest.mark.parametrize("kind", ["one long line", "many short lines", "lines around the block size", "nothing"])
@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n\n"])
def test_lines_come_back_in_reverse_whatever_their_length(
    memory: MemoryStore, segments: StoredSegments, kind: str, end: bytes
) -> None:
    async def run() -> None:
        expected = list(_content(kind))
        await memory.put("some/segment", b"\n".join(expected) + end)
        assert [raw async for raw in scan_back(segments, "some/segment")] == expected[::-1]
        assert [raw async for raw in scan_back(segments, "no/segment")] == []

    asyncio.run(run())


def test_the_end_of_a_long_segment_is_found_without_reading_it(memory: MemoryStore, segments: StoredSegments) -> None:
    async def run() -> None:
        await memory.put("some/segment", b"x\n" * 10_000_000)
        memory.calls.clear()
        async for _ in scan_back(segments, "some/segment"):
            break
        assert memory.calls == ["get_range some/segment"]

    asyncio.run(run())
