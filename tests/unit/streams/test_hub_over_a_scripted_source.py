"""The hub in situations that a real server gives only by chance."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from patchyard.adapters.queue import CommittedLine, FireEntry, Snapshot
from patchyard.adapters.streams import EventHub, frame_of_line
from patchyard.adapters.streams import _hub as hub_module
from tests.waiting import WAIT_S


def line(ordinal: int) -> bytes:
    start = b'{"timestamp":1,"ordinal":%d,"submission_id":null,"turn_id":null,"type":"event_msg",' % ordinal
    return start + b'"payload":{"type":"warning","message":"m"}}'


@dataclass
class ScriptedSource:
    """A stream of records and a firehose that the test fills, fails or trims."""

    failures: int = 0
    records: int = 0
    oldest: str = "0-0"
    fired: "asyncio.Queue[Sequence[FireEntry]]" = field(default_factory=asyncio.Queue)
    snapshots: int = 0

    def _fail(self) -> None:
        if self.failures > 0:
            self.failures -= 1
            raise ConnectionError("away")

    async def snapshot(self, thread_id: str, *, after: int | None, limit: int) -> Snapshot:
        self._fail()
        self.snapshots += 1
        first = 0 if after is None else after + 1
        lines = [CommittedLine(o, line(o)) for o in range(first, self.records)][:limit]
        return Snapshot(
            tenant_id="t", lines=lines, trimmed_through=None, next_ordinal=self.records, complete=len(lines) < limit,
            open_texts=[], closed=False, position="5-0",
        )  # fmt: skip

    async def fire_position(self) -> str:
        self._fail()
        return "5-0"

    async def fire_oldest(self) -> str:
        return self.oldest

    async def read_fire(self, after_id: str) -> Sequence[FireEntry]:
        self._fail()
        return await self.fired.get()


def entry(position: str, ordinal: int) -> FireEntry:
    return FireEntry(
        id=position, thread_id="x", tenant_id="t", ordinal=ordinal, line=line(ordinal), item_key="", offset=0, fence=0,
        head=b"", text=None,
    )  # fmt: skip


async def ordinals(hub: EventHub, count: int) -> list[int | None]:
    stream = hub.subscribe("x")
    async with asyncio.timeout(WAIT_S):
        found = [(await anext(stream)).ordinal for _ in range(count)]
    await stream.aclose()
    return found


def test_a_source_that_is_away_at_first_is_waited_for() -> None:
    async def main() -> None:
        hub = EventHub(ScriptedSource(failures=3, records=2))
        await hub.open()
        assert await ordinals(hub, 2) == [0, 1]
        await hub.close()

    asyncio.run(main())


def test_a_long_record_is_read_in_pages() -> None:
    async def main() -> None:
        source = ScriptedSource(records=700)
        hub = EventHub(source)
        await hub.open()
        assert await ordinals(hub, 700) == list(range(700))
        assert source.snapshots >= 3
        await hub.close()

    asyncio.run(main())


def test_what_the_snapshot_covers_is_not_shown_again() -> None:
    async def main() -> None:
        source = ScriptedSource(records=3)
        hub = EventHub(source)
        await hub.open()
        await asyncio.sleep(0)  # the reader has its position now; what it reads later is news
        stream = hub.subscribe("x")
        async with asyncio.timeout(WAIT_S):
            first = await anext(stream)
            source.fired.put_nowait([entry("4-0", 1), entry("5-0", 2), entry("6-0", 3)])
            rest = [(await anext(stream)).ordinal for _ in range(3)]
        assert [first.ordinal, *rest] == [0, 1, 2, 3]
        await hub.close()

    asyncio.run(main())


def test_a_reader_that_fell_behind_the_trim_makes_everybody_resume() -> None:
    async def main() -> None:
        source = ScriptedSource(records=1)
        hub = EventHub(source)
        await hub.open()
        stream = hub.subscribe("x")
        async with asyncio.timeout(WAIT_S):
            assert (await anext(stream)).ordinal == 0
            following = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            source.records, source.oldest = 4, "90-0"
            source.fired.put_nowait([entry(f"{100 + i}-0", 3) for i in range(hub_module.LAG_CHECK)])
            assert [(await following).ordinal, (await anext(stream)).ordinal, (await anext(stream)).ordinal] == [1, 2, 3]
        await hub.close()

    asyncio.run(main())


def test_a_line_of_another_layout_is_decoded() -> None:
    other = (
        b'{"ordinal": 4, "type": "event_msg", "payload": {"message": "m", "type": "warning"}, "turn_id": "u", "timestamp": 1}'
    )
    frame = frame_of_line("t", "x", 4, other)
    assert frame is not None
    assert (frame.type, frame.ordinal) == ("warning", 4)
    assert frame.data.startswith(b'{"tenant_id":"t","thread_id":"x","ordinal":4,"submission_id":null,"turn_id":"u","msg":')
    assert frame_of_line("t", "x", 4, b'{"ordinal":4,"type":"effect","payload":{"note":",\\"type\\":\\"event_msg\\""}}') is None
