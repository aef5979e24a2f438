"""A thread's rollout over every object store."""

import asyncio
from collections.abc import Callable

from patchyard.adapters.store import OpenStore, StoredSegments
from patchyard.rollout import (
    SegmentRecorder,
    StoredLine,
    encode_line,
    load_thread,
    read_back,
    read_lines,
    restore,
    thread_prefix,
)
from tests.rollout_lines import verified_task


def test_two_recorders_two_processes_and_a_restore(open_another: Callable[[], OpenStore]) -> None:
    thread = verified_task()
    lines = [StoredLine(line.ordinal, encode_line(line)) for line in thread.lines]
    prefix = thread_prefix("default", thread.thread_id)

    async def run() -> None:
        stores = open_another(), open_another()
        first, second = (SegmentRecorder(StoredSegments(store), "default", thread.thread_id) for store in stores)
        await first.stored_through()
        await asyncio.gather(first.append(lines[:5]), second.append(lines[:7]))
        await second.append(lines[:10])
        assert await first.append(lines[4:9]) >= 8
        await first.merge()
        assert await second.append(lines) == lines[-1].ordinal
        segments = StoredSegments(stores[1])
        assert [line async for line in read_lines(segments, prefix)] == lines
        assert [line async for line in read_back(segments, prefix)] == lines[::-1]
        assert await load_thread(segments, "default", thread.thread_id) == restore(thread.lines)
        await second.merge()
        assert [line async for line in read_lines(segments, prefix, start=3)] == lines[3:]
        for store in stores:
            await store.close()

    asyncio.run(run())
