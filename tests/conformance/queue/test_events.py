"""What watchers see: a snapshot, then live, without a gap and without a double."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from patchyard.adapters.queue import CommittedLine, QueueCore
from patchyard.adapters.streams import EventFrame, EventHub, HistoryUnavailable
from patchyard.adapters.streams import _subscription as subscription_module
from patchyard.adapters.streams._source import History
from patchyard.protocol import events, ops
from patchyard.protocol.events import Event
from patchyard.protocol.ids import new_id
from patchyard.protocol.items import AgentMessageItem, CommandExecutionItem, ItemStatus
from patchyard.protocol.model_items import Message, OutputText
from tests.conformance.queue.kit import WAIT_S, Kit, MakeBackend, Unreliable, completed, delta, kit, say, started, until


@asynccontextmanager
async def hub(core: QueueCore, history: History | None = None, size: int = 1000) -> AsyncIterator[EventHub]:
    """A hub that reads the firehose: what is fired from now on reaches its subscribers live."""
    assert isinstance(core.backend, Unreliable)
    backend = core.backend
    opened = EventHub(core, history=history, queue_size=size)
    await opened.open()
    try:
        await until(lambda: _true("fire" in backend.read))
        yield opened
    finally:
        await opened.close()


def parsed(frame: EventFrame) -> Event:
    event = Event.model_validate_json(frame.data)
    assert (event.msg.type, event.ordinal) == (frame.type, frame.ordinal)
    assert b"\n" not in frame.data
    return event


async def take(stream: AsyncIterator[EventFrame], count: int) -> list[Event]:
    async with asyncio.timeout(WAIT_S):
        return [parsed(await anext(stream)) for _ in range(count)]


async def caught_up(h: EventHub, thread: str) -> AsyncIterator[EventFrame]:
    """A subscription that has read what there was, a turn's start: whatever comes now is news for it."""
    stream = h.subscribe(thread)
    assert [e.ordinal for e in await take(stream, 1)] == [0]
    return stream


async def texts(stream: AsyncIterator[EventFrame], whole: str) -> int:
    """Read deltas until their texts make up the whole; how many it took."""
    got, count = "", 0
    async with asyncio.timeout(WAIT_S):
        while got != whole:
            event = parsed(await anext(stream))
            assert isinstance(event.msg, events.AgentMessageDelta), event
            got += event.msg.delta
            count += 1
            assert whole.startswith(got), (got, whole)
    return count


async def stored_text(k: Kit, thread: str, text: str) -> None:
    async def there() -> bool:
        page = await k.core.snapshot(thread, after=None, limit=100)
        return any(json.loads(b'"' + (o.text or b"") + b'"') == text for o in page.open_texts)

    await until(there)


def message_started(item: str = "msg") -> events.ItemStarted:
    return events.ItemStarted(item=AgentMessageItem(id=item, text="", status=ItemStatus.IN_PROGRESS), started_at=1)


def message_completed(text: str, item: str = "msg") -> events.ItemCompleted:
    return events.ItemCompleted(item=AgentMessageItem(id=item, text=text), completed_at=2)


def test_snapshot_then_live_with_every_event_exactly_once(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k, hub(k.core) as h:
            run = await k.running()
            hidden = Message(role="assistant", content=(OutputText(text="for recovery only"),))
            await run.channel.commit([hidden, started("second")], turn_id=run.turn)
            stream = h.subscribe(run.thread)
            seen = await take(stream, 2)
            await run.channel.commit([started("third")], turn_id=run.turn, submission_id=run.turn)
            seen += await take(stream, 1)
            assert [e.ordinal for e in seen] == [0, 2, 3]
            assert (seen[2].tenant_id, seen[2].thread_id) == ("default", run.thread)
            assert (seen[2].turn_id, seen[2].submission_id, seen[2].msg) == (run.turn, run.turn, started("third"))
            later = h.subscribe(run.thread, after=2)
            assert [e.ordinal for e in await take(later, 1)] == [3]
            assert h.subscribers == 2
            await stream.aclose()
            await later.aclose()
            assert h.subscribers == 0

    asyncio.run(main())


def test_a_late_subscriber_gets_the_text_so_far_as_one_delta(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k, hub(k.core) as h:
            run = await k.running()
            await run.channel.commit([message_started()], turn_id=run.turn)
            for piece in ('He said "', "hé\\llo\n", "\U0001f600"):
                run.channel.live(delta(piece), turn_id=run.turn)
            await stored_text(k, run.thread, 'He said "hé\\llo\n\U0001f600')
            stream = h.subscribe(run.thread)
            assert [e.msg.type for e in await take(stream, 2)] == ["turn_started", "item_started"]
            (so_far,) = await take(stream, 1)
            assert so_far.msg == delta('He said "hé\\llo\n\U0001f600')
            assert (so_far.ordinal, so_far.turn_id) == (None, run.turn)
            run.channel.live(delta(" and more"), turn_id=run.turn)
            assert (await take(stream, 1))[0].msg == delta(" and more")
            await run.channel.commit([message_completed("whole")], turn_id=run.turn)
            assert (await take(stream, 1))[0].msg == message_completed("whole")
            late = h.subscribe(run.thread, after=1)
            assert [e.msg.type for e in await take(late, 1)] == ["item_completed"]
            assert (await k.core.snapshot(run.thread, after=None, limit=100)).open_texts == []

    asyncio.run(main())


def test_deltas_and_commits_keep_their_order(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k, hub(k.core) as h:
            run = await k.running()
            reading = asyncio.ensure_future(take(await caught_up(h, run.thread), 6))
            await run.channel.commit([message_started("a")], turn_id=run.turn)
            run.channel.live(delta("1", "a"), turn_id=run.turn)
            first = asyncio.ensure_future(run.channel.commit([message_completed("1", "a")], turn_id=run.turn))
            await asyncio.sleep(0)
            second = asyncio.ensure_future(run.channel.commit([message_started("b")], turn_id=run.turn))
            await asyncio.gather(first, second)
            run.channel.live(delta("2", "b"), turn_id=run.turn)
            await run.channel.commit([message_completed("2", "b")], turn_id=run.turn)
            kinds = [(e.msg.type, e.ordinal) for e in await reading]
            assert kinds == [
                ("item_started", 1),
                ("agent_message_delta", None),
                ("item_completed", 2),
                ("item_started", 3),
                ("agent_message_delta", None),
                ("item_completed", 4),
            ]

    asyncio.run(main())


async def _true(value: object) -> bool:
    return bool(value)


def test_deltas_are_joined(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k, hub(k.core) as h:
            run = await k.running()
            whole = "".join(f"{i} " for i in range(400))
            waiting = asyncio.ensure_future(texts(await caught_up(h, run.thread), whole))
            for i in range(400):
                run.channel.live(delta(f"{i} "), turn_id=run.turn)
                if i % 10 == 0:
                    await asyncio.sleep(0)
            assert await waiting <= 60

    asyncio.run(main())


def test_every_kind_of_live_message_arrives_as_it_was(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k, hub(k.core) as h:
            run = await k.running()
            shown: list[events.LiveMsg] = [
                events.AgentMessageDelta(item_id="m", delta="a"),
                events.ReasoningDelta(item_id="r", delta="b"),
                events.ToolCallInputDelta(item_id="c", name="exec_command", delta='{"cmd":'),
                events.ExecOutputDelta(item_id="c", delta="\x1b[1mout\x00\r\n"),
                events.PatchProgress(item_id="p", paths=("a.py", "b.py")),
                events.SetupOutputDelta(phase="verify", delta="pip …"),
            ]
            waiting = asyncio.ensure_future(take(await caught_up(h, run.thread), len(shown)))
            for msg in shown:
                run.channel.live(msg, turn_id=run.turn)
            assert [e.msg for e in await waiting] == shown
            late = h.subscribe(run.thread, after=0)
            by_type = sorted(shown, key=lambda m: m.type)
            assert sorted((e.msg for e in await take(late, len(shown))), key=lambda m: m.type) == by_type

    asyncio.run(main())


def test_output_beyond_the_limit_is_cut_for_late_subscribers_only(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k, hub(k.core) as h:
            run = await k.running()
            piece = "x" * 60_000
            got = 0
            reading = asyncio.ensure_future(take(await caught_up(h, run.thread), 6))
            for _ in range(6):
                run.channel.live(events.ExecOutputDelta(item_id="c", delta=piece), turn_id=run.turn)
                await run.channel.commit([], turn_id=run.turn)
            for event in await reading:
                assert isinstance(event.msg, events.ExecOutputDelta)
                got += len(event.msg.delta)
            assert got == 360_000
            page = await k.core.snapshot(run.thread, after=None, limit=10)
            assert 60_000 <= len(page.open_texts[0].text or b"") <= 262_144

    asyncio.run(main())


def test_a_slow_subscriber_misses_nothing_and_holds_up_nobody(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k, hub(k.core, size=5) as h:
            run = await k.running()
            await run.channel.commit([message_started()], turn_id=run.turn)
            slow, fast = h.subscribe(run.thread), h.subscribe(run.thread)
            assert [e.ordinal for e in await take(slow, 2)] == [0, 1]
            reading = asyncio.ensure_future(_until_type(fast, "turn_completed"))
            run.channel.live(delta("abc"), turn_id=run.turn)
            assert (await take(slow, 1))[0].msg == delta("abc")
            for i in range(40):
                run.channel.live(delta(f"-{i}"), turn_id=run.turn)
                await run.channel.commit([started(f"{i}")], turn_id=run.turn)
            rest = "".join(f"-{i}" for i in range(40))
            await stored_text(k, run.thread, "abc" + rest)
            seen = await take(slow, 1)
            while 41 not in [e.ordinal for e in seen] or not _text(seen).endswith("-39"):
                seen += await take(slow, 1)
            assert [e.ordinal for e in seen if e.ordinal is not None] == list(range(2, 42))
            assert _text(seen) == rest, "the text that it had already is not repeated"
            await run.channel.commit([completed()], turn_id=run.turn)
            assert [e.ordinal for e in await reading if e.ordinal is not None] == list(range(43))

    asyncio.run(main())


def _text(seen: Sequence[Event]) -> str:
    return "".join(e.msg.delta for e in seen if isinstance(e.msg, events.AgentMessageDelta))


async def _until_type(stream: AsyncIterator[EventFrame], wanted: str) -> list[Event]:
    seen: list[Event] = []
    async with asyncio.timeout(WAIT_S):
        async for frame in stream:
            seen.append(parsed(frame))
            if frame.type == wanted:
                return seen
    return seen


def test_subscribers_that_come_at_any_moment_see_the_same(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k, hub(k.core, size=20) as h:
            run = await k.running()
            readers = []
            for i in range(30):
                readers.append(asyncio.ensure_future(_until_type(h.subscribe(run.thread), "turn_completed")))
                await run.channel.commit([message_started(f"i{i}")], turn_id=run.turn)
                run.channel.live(delta("a", f"i{i}"), turn_id=run.turn)
                await asyncio.sleep(0)
                run.channel.live(delta("b", f"i{i}"), turn_id=run.turn)
                await run.channel.commit([message_completed("ab", f"i{i}")], turn_id=run.turn)
            await run.channel.finish_turn([completed()], turn_id=run.turn)
            for reader in readers:
                seen = await reader
                assert [e.ordinal for e in seen if e.ordinal is not None] == list(range(62))
                _check_items(seen)

    asyncio.run(main())


def _check_items(seen: Sequence[Event]) -> None:
    """Deltas come only while their item is open, and never repeat."""
    open_item, text = "", ""
    for event in seen:
        match event.msg:
            case events.ItemStarted():
                open_item, text = event.msg.item.id, ""
            case events.ItemCompleted():
                open_item = ""
            case events.AgentMessageDelta():
                text += event.msg.delta
                assert event.msg.item_id == open_item
                assert "ab".startswith(text)
            case _:
                pass


def test_a_record_too_big_for_the_firehose_arrives_in_its_place(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k, hub(k.core) as h:
            run = await k.running()
            reading = asyncio.ensure_future(take(await caught_up(h, run.thread), 3))
            output = "y" * 100_000
            item = CommandExecutionItem(
                id="c", command="cat", cwd="/", status=ItemStatus.COMPLETED, aggregated_output=output, exit_code=0
            )
            await run.channel.commit([started("before")], turn_id=run.turn)
            await run.channel.commit([events.ItemCompleted(item=item, completed_at=1)], turn_id=run.turn)
            await run.channel.commit([started("after")], turn_id=run.turn)
            seen = await reading
            assert [e.ordinal for e in seen] == [1, 2, 3]
            assert seen[1].msg == events.ItemCompleted(item=item, completed_at=1)

    asyncio.run(main())


def test_events_older_than_the_trim_come_from_the_rollout(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            await run.channel.commit([started(f"{i}") for i in range(9)], turn_id=run.turn)
            rollout = await k.core.read_lines(run.thread, after=None, limit=100)
            asked: list[Any] = []
            failures = iter([RuntimeError("the store is away")])

            async def history(tenant: str, thread: str, after: int | None, through: int) -> AsyncIterator[CommittedLine]:
                asked.append((tenant, thread, after, through))
                for failure in failures:
                    raise failure
                for line in rollout:
                    if (-1 if after is None else after) < line.ordinal <= through:
                        # A rollout that another program wrote has another layout.
                        yield line._replace(json=json.dumps(json.loads(line.json), indent=1).encode())

            await k.core.trim(run.thread, 5)
            async with hub(k.core, history) as h:
                assert [e.ordinal for e in await take(h.subscribe(run.thread), 10)] == list(range(10))
                assert asked == [("default", run.thread, None, 5)] * 2
                assert [e.ordinal for e in await take(h.subscribe(run.thread, after=2), 7)] == list(range(3, 10))
                assert [e.ordinal for e in await take(h.subscribe(run.thread, after=5), 4)] == list(range(6, 10))
                assert asked[2:] == [("default", run.thread, 2, 5)]

    asyncio.run(main())


def test_a_rollout_that_can_not_be_read_ends_the_subscription_with_a_reason(
    backend: MakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            await k.core.trim(run.thread, 0)

            async def history(tenant: str, thread: str, after: int | None, through: int) -> AsyncIterator[CommittedLine]:
                raise RuntimeError("the store is away")
                yield

            monkeypatch.setattr(subscription_module, "HISTORY_PATIENCE_S", 0.2)
            async with hub(k.core, history) as h:
                with pytest.raises(HistoryUnavailable):
                    await take(h.subscribe(run.thread), 1)
                assert h.subscribers == 0

    asyncio.run(main())


def test_a_subscription_ends_with_its_thread(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k, hub(k.core) as h:
            thread = new_id()
            await k.submit(thread, say())
            watching = asyncio.ensure_future(_all(h.subscribe(thread)))
            await until(lambda: _true(h.subscribers == 1))
            await k.submit(thread, ops.Shutdown())
            async with asyncio.timeout(WAIT_S):
                assert [e.msg.type for e in await watching] == ["turn_interrupted", "thread_closed"]
                assert [e.msg.type for e in await _all(h.subscribe(thread, after=0))] == ["thread_closed"]
                assert await _all(h.subscribe(thread, after=1)) == []

    asyncio.run(main())


async def _all(stream: AsyncIterator[EventFrame]) -> list[Event]:
    return [parsed(frame) async for frame in stream]


def test_closing_the_hub_ends_all_subscriptions(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            async with hub(k.core) as h:
                watching = asyncio.ensure_future(_all(h.subscribe(run.thread)))
                await until(lambda: _true(h.subscribers == 1))
            async with asyncio.timeout(WAIT_S):
                assert len(await watching) <= 1

    asyncio.run(main())


def test_texts_of_a_lost_worker_are_gone_and_the_next_one_starts_anew(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k, hub(k.core) as h:
            run = await k.running()
            reading = asyncio.ensure_future(take(await caught_up(h, run.thread), 2))
            run.channel.live(delta("half of it"), turn_id=run.turn)
            await stored_text(k, run.thread, "half of it")
            await k.lose(run.thread)
            assert (await k.core.snapshot(run.thread, after=None, limit=9)).open_texts == []
            second = await k.channel("w2")
            run.channel.live(delta("a zombie's word"), turn_id=run.turn)
            second.live(delta("half"), turn_id=run.turn)
            assert [e.msg for e in await reading] == [delta("half of it"), delta("half")]
            with contextlib.suppress(Exception):
                await second.hand_over()

    asyncio.run(main())
