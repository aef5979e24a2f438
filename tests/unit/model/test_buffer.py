"""The buffer between socket and turn."""

import asyncio

import pytest

from patchyard.adapters.model.buffer import MERGED_CHARS, EventBuffer
from patchyard.agent.ports import ItemDone, ModelEvent, TextDelta
from patchyard.protocol.model_items import OpaqueItem
from tests.waiting import WAIT_S

DONE = ItemDone(OpaqueItem(type="x"))


async def take_all(buffer: EventBuffer) -> list[ModelEvent]:
    found = []
    while (event := await buffer.get()) is not None:
        found.append(event)
    return found


def test_waiting_deltas_of_one_text_are_joined_up_to_a_length() -> None:
    async def run() -> None:
        buffer = EventBuffer()
        for letter in "abc":
            buffer.put(TextDelta("m", letter), 1)
        buffer.put(TextDelta("other", "d"), 1)
        for _ in range(3 * MERGED_CHARS):
            buffer.put(TextDelta("other", "e"), 1)
        buffer.finish()
        found = await take_all(buffer)
        assert found[0] == TextDelta("m", "abc")
        assert [len(event.delta) for event in found[1:] if isinstance(event, TextDelta)] == [MERGED_CHARS] * 3 + [1]

    asyncio.run(run())


@pytest.mark.parametrize(("size", "fits"), [(1, 4), (50, 2)])
def test_a_full_buffer_makes_the_producer_wait_until_half_is_free(size: int, fits: int) -> None:
    async def run() -> None:
        buffer = EventBuffer(max_events=4, max_bytes=100)
        for _ in range(fits):
            assert not buffer.is_full
            buffer.put(DONE, size)
        assert buffer.is_full
        room = asyncio.create_task(buffer.room())
        for _ in range(fits // 2):
            await asyncio.wait({room}, timeout=0)
            assert not room.done()
            await buffer.get()
        await asyncio.wait_for(room, WAIT_S)

    asyncio.run(run())


def test_the_error_comes_after_what_was_read() -> None:
    async def run() -> None:
        buffer = EventBuffer()
        buffer.put(DONE, 1)
        buffer.finish(ValueError("broken"))
        assert await buffer.get() == DONE
        with pytest.raises(ValueError, match="broken"):
            await buffer.get()

    asyncio.run(run())
