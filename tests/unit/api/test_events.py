import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from api import sse
from patchyard.client import StreamLost
from patchyard.protocol import events
from patchyard.protocol.events import AgentMessageDelta, Event, ItemCompleted
from patchyard.protocol.items import AgentMessageItem
from patchyard.protocol.ops import BudgetAnswer, TextInput, TurnInput
from patchyard.rollout import segment_key, thread_prefix
from tests.unit.api.kit import AUTH, Api, serving, spec
from tests.waiting import WAIT_S


async def collect(stream: Any) -> list[Event]:
    return [event async for event in stream]


async def raw(api: Api, path: str, **headers: str) -> str:
    async with httpx.AsyncClient(base_url=api.url, headers=AUTH, timeout=WAIT_S, trust_env=False) as http:
        return (await http.get(path, headers=headers)).text


def test_a_watcher_sees_everything_once_from_the_start_to_the_end(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as api, api.sdk() as client:
            created = await client.create_task(spec())
            early = asyncio.create_task(collect(client.task_events(created.task_id)))
            worker = await api.worker()
            await worker.start()
            await worker.say(events.Warning_(message="one"))
            late = asyncio.create_task(collect(client.task_events(created.task_id)))
            await worker.say(events.Warning_(message="two"))
            await worker.finish(after=[events.Warning_(message="after the end, in the same step")])
            seen = await asyncio.wait_for(early, WAIT_S)
            assert [event.msg.type for event in seen] == [
                "task_status_changed",
                "turn_started",
                "warning",
                "warning",
                "turn_completed",
                "task_status_changed",
                "warning",
            ]
            assert [event.ordinal for event in seen] == list(range(7))
            assert await asyncio.wait_for(late, WAIT_S) == seen
            assert await collect(client.task_events(created.task_id)) == seen, "the same again when it is over"
            assert [event.ordinal for event in await collect(client.task_events(created.task_id, after=3))] == [4, 5, 6]
            assert await collect(client.task_events(created.task_id, after=6)) == []

    asyncio.run(run())


def test_a_stream_ends_with_its_turn_though_the_worker_has_something_left_to_answer(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as api, api.sdk() as client:
            created = await client.create_task(spec())
            worker = await api.worker()
            await worker.start()
            watching = asyncio.create_task(collect(client.task_events(created.task_id)))
            late = BudgetAnswer(request_id="nobody-asked", decision="decline")
            assert (await client.submit(created.thread_id, late)).admission.type == "applied"
            await worker.finish()
            assert (await asyncio.wait_for(watching, WAIT_S))[-1].msg.type == "task_status_changed"
            assert (await asyncio.wait_for(collect(client.task_events(created.task_id)), WAIT_S))[-1].ordinal == 3

    asyncio.run(run())


def test_frames_are_what_browsers_expect(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as api, api.sdk() as client:
            created = await client.create_task(spec())
            await client.cancel_task(created.task_id)
            text = await raw(api, f"/v1/tasks/{created.task_id}/events")
            frames = [dict(line.split(": ", 1) for line in frame.splitlines()) for frame in text.strip().split("\n\n")]
            assert [frame["event"] for frame in frames][-2:] == ["turn_interrupted", "stream_end"]
            assert [frame.get("id") for frame in frames] == [*map(str, range(len(frames) - 1)), None]
            data = json.loads(frames[-2]["data"])
            assert (data["thread_id"], data["msg"]["type"]) == (created.thread_id, "turn_interrupted")
            resumed = await raw(api, f"/v1/tasks/{created.task_id}/events?after=0", **{"last-event-id": str(len(frames) - 3)})
            assert resumed.count("event:") == 2, "Last-Event-ID goes before ?after="
            broken = await raw(api, f"/v1/tasks/{created.task_id}/events", **{"last-event-id": "x-1"})
            assert json.loads(broken)["code"] == "invalid_request"

    asyncio.run(run())


def test_live_text_is_shown_but_has_no_id_and_is_not_kept(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as api, api.sdk() as client:
            created = await client.create_task(spec())
            worker = await api.worker()
            await worker.start()
            stream = client.task_events(created.task_id)
            seen: list[Event] = []
            async for event in stream:
                seen.append(event)
                if event.msg.type == "turn_started":
                    worker.channel.live(AgentMessageDelta(item_id="i", delta="hel"), turn_id=worker.turn_id)
                    worker.channel.live(AgentMessageDelta(item_id="i", delta="lo"), turn_id=worker.turn_id)
                if isinstance(event.msg, AgentMessageDelta) and text_of(seen) == "hello":
                    item = AgentMessageItem(id="i", text="hello")
                    await worker.say(ItemCompleted(item=item, completed_at=1))
                    await worker.finish()
            assert text_of(seen) == "hello"
            assert all(event.ordinal is None for event in seen if isinstance(event.msg, AgentMessageDelta))
            replayed = await collect(client.task_events(created.task_id))
            assert replayed == [event for event in seen if event.ordinal is not None]

    asyncio.run(run())


def text_of(seen: list[Event]) -> str:
    return "".join(event.msg.delta for event in seen if isinstance(event.msg, AgentMessageDelta))


def test_a_client_takes_a_broken_stream_up_again_without_gap_or_double(tmp_path: Path) -> None:
    """The server goes away in the middle and comes back on the same port."""

    async def run() -> None:
        async with serving(tmp_path) as first:
            port = int(first.url.rsplit(":", 1)[1])
            queue, store = first.queue, first.deps.store
            client = first.sdk()
            created = await client.create_task(spec())
            worker = await first.worker()
            await worker.start()
            stream = client.task_events(created.task_id)
            seen = [await anext(stream), await anext(stream)]
            following = asyncio.create_task(collect(stream))
            await worker.say(events.Warning_(message="one"))
        await queue.open()
        async with serving(tmp_path, queue=queue, store=store, port=port):
            await worker.say(events.Warning_(message="two"))
            await worker.finish()
            seen += await asyncio.wait_for(following, WAIT_S)
            assert [event.ordinal for event in seen] == list(range(6))
        await client.aclose()

    asyncio.run(run())


def test_a_client_gives_up_when_the_service_stays_away(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as api:
            client = api.sdk()
            created = await client.create_task(spec())
            stream = client.task_events(created.task_id, reconnect_for_s=0.1)
            following = asyncio.create_task(collect(stream))
            await asyncio.sleep(0)
        with pytest.raises(StreamLost) as lost:
            await following
        assert "the start" in str(lost.value.remedy)
        await client.aclose()

    asyncio.run(run())


def test_open_streams_do_not_hold_up_the_end_of_the_process(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as api:
            client = api.sdk()
            created = await client.create_task(spec())
            opened = asyncio.Event()
            text: list[str] = []

            async def watch() -> None:
                async with api.http.stream("GET", f"/v1/threads/{created.thread_id}/events") as response:
                    opened.set()
                    async for piece in response.aiter_text():
                        text.append(piece)

            watching = asyncio.create_task(watch())
            await opened.wait()
            async with asyncio.timeout(WAIT_S):
                await api.server.shutdown()
                await watching
            assert 'event: stream_end\ndata: {"reason":"shutdown"}' in "".join(text)
            await client.aclose()

    asyncio.run(run())


def test_a_follow_up_is_seen_by_those_who_stay(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as api, api.sdk() as client:
            created = await client.create_task(spec())
            worker = await api.worker()
            await worker.start()
            await worker.finish()
            stream = client.thread_events(created.thread_id)
            seen = []
            async for event in stream:
                seen.append(event.msg.type)
                if seen.count("turn_completed") == 1 and len(seen) == 4:
                    receipt = await client.submit(created.thread_id, TurnInput(items=(TextInput(text="and now?"),)))
                    assert receipt.admission.type == "started"
                    worker = await api.worker()
                    await worker.start()
                if seen.count("turn_started") == 2:
                    break
            await stream.aclose()

    asyncio.run(run())


def test_silence_is_filled_with_heartbeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "HEARTBEAT_S", 0.02)

    async def run() -> None:
        async with serving(tmp_path) as api, api.sdk() as client:
            created = await client.create_task(spec())
            async with api.http.stream("GET", f"/v1/tasks/{created.task_id}/events") as response:
                pieces = response.aiter_text()
                assert (await asyncio.wait_for(anext(pieces), WAIT_S)).startswith(": heartbeat\n\n")

    asyncio.run(run())


def test_the_rollout_is_read_from_stream_and_store_as_one(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as api, api.sdk() as client:
            created = await client.create_task(spec())
            worker = await api.worker()
            await worker.start()
            await worker.say(events.Warning_(message="one"))
            lines = await api.queue.read_lines(created.thread_id, after=None, limit=10)
            key = segment_key(thread_prefix("default", created.thread_id), 0)
            await api.deps.store.put(key, b"".join(line.json + b"\n" for line in lines[:2]))
            await api.queue.trim(created.thread_id, 1)
            await worker.finish()
            text = b"".join([piece async for piece in client.rollout(created.task_id)])
            records = [json.loads(line) for line in text.splitlines()]
            assert [record["ordinal"] for record in records] == list(range(5))
            seen = await collect(client.task_events(created.task_id))
            assert [event.ordinal for event in seen] == list(range(5))
            tree = await client.trace(created.task_id)
            assert (tree["task_id"], tree["trace_id"]) == (created.task_id, created.trace_id)
            assert tree["root"]["children"]

    asyncio.run(run())
