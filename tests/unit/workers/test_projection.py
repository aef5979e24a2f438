import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from opentelemetry.metrics import NoOpMeterProvider

from observability import Metrics
from patchyard.adapters.catalog import Catalog, CatalogUnavailable
from patchyard.adapters.queue import QueueThreadChannel, ThreadRegistration
from patchyard.adapters.store import StoredSegments, StoreUnavailable
from patchyard.protocol.events import TurnCompleted, TurnStarted
from patchyard.protocol.ids import new_id
from patchyard.protocol.model_items import TokenUsage
from patchyard.protocol.ops import Submission, TextInput, TurnInput
from patchyard.protocol.tasks import NoSource, TaskSpec, TaskStatus, TaskView
from patchyard.rollout import read_lines, thread_prefix
from patchyard.testing.queue import MemoryQueueCore
from patchyard.testing.store import MemoryStore
from workers.maintenance.projection import Projection

NOW = time.time_ns() // 1_000_000


class Kit:
    def __init__(self, folder: Path) -> None:
        self.now_ms = NOW
        self.queue = MemoryQueueCore(now_ms=lambda: self.now_ms)
        self.store = MemoryStore()
        self.catalog = Catalog(f"sqlite:///{folder / 'catalog.db'}")
        self.projection = Projection(self.queue, self.store, self.catalog, Metrics(NoOpMeterProvider().get_meter("t")))
        self.thread_id, self.task_id, self.turn_id = new_id(), new_id(), new_id()

    async def open(self) -> QueueThreadChannel:
        """A task whose turn was claimed."""
        await self.queue.open()
        await self.catalog.migrate()
        spec = TaskSpec(repository=NoSource(), instruction="x")
        view = TaskView(
            id=self.task_id,
            tenant_id="default",
            thread_id=self.thread_id,
            turn_id=self.turn_id,
            status=TaskStatus.QUEUED,
            reason="submitting",
            title="x",
            spec=spec,
            created_at=NOW,
        )
        await self.catalog.create_task(view)
        submission = Submission(
            id=self.turn_id,
            tenant_id="default",
            thread_id=self.thread_id,
            op=TurnInput(items=(TextInput(text="x"),)),
            submitted_at=NOW,
        )
        await self.queue.submit(submission, registration=ThreadRegistration(task_id=self.task_id, spec_json="{}"))
        claim = await self.queue.claim("w1")
        assert claim is not None
        channel = QueueThreadChannel(self.queue, claim)
        received = await channel.receive()
        started = TurnStarted(model="m", submitted_at=NOW, started_at=NOW)
        await channel.commit([started], turn_id=self.turn_id, consumed=[received.id])
        return channel

    async def finish(self, channel: QueueThreadChannel) -> None:
        ended = TurnCompleted(usage=TokenUsage(), model_requests=1, tool_calls=0, duration_ms=1)
        await channel.finish_turn([ended], turn_id=self.turn_id)

    async def round(self, *, later_ms: int = 0) -> None:
        """One round, so much later."""
        self.now_ms += later_ms
        await self.projection.round(now_ms=self.now_ms)

    async def stored(self) -> list[int]:
        segments = StoredSegments(self.store)
        return [line.ordinal async for line in read_lines(segments, thread_prefix("default", self.thread_id))]

    async def held(self) -> list[int]:
        return [line.ordinal for line in await self.queue.read_lines(self.thread_id, after=None, limit=100)]

    async def status(self) -> TaskStatus:
        return (await self.catalog.get_task("default", self.task_id)).status


def run(tmp_path: Path, body: Callable[[Kit], Awaitable[None]]) -> None:
    async def main() -> None:
        kit = Kit(tmp_path)
        try:
            await body(kit)
        finally:
            await kit.catalog.close()
            await kit.queue.close()

    asyncio.run(main())


def test_a_running_turn_is_listed_at_once_and_stored_after_a_second(tmp_path: Path) -> None:
    async def body(kit: Kit) -> None:
        channel = await kit.open()
        await kit.round()
        assert await kit.status() is TaskStatus.RUNNING
        assert await kit.stored() == []
        await kit.round(later_ms=1500)
        assert await kit.stored() == [0]
        assert await kit.held() == []
        await kit.finish(channel)
        await kit.round()
        assert await kit.status() is TaskStatus.SUCCEEDED
        assert await kit.stored() == [0, 1]
        keys = (await kit.store.list(thread_prefix("default", kit.thread_id))).keys
        assert [key.rpartition("/")[2] for key in keys] == [f"{0:020}-{1:020}.jsonl"]

    run(tmp_path, body)


def test_nothing_is_trimmed_before_the_store_has_it(tmp_path: Path) -> None:
    async def body(kit: Kit) -> None:
        channel = await kit.open()
        await kit.finish(channel)
        put, kit.store.put = kit.store.put, _away(StoreUnavailable("the store is away"))  # type: ignore[method-assign]
        await kit.round()
        assert await kit.held() == [0, 1]
        assert await kit.status() is TaskStatus.SUCCEEDED
        kit.store.put = put  # type: ignore[method-assign]
        await kit.round()
        assert await kit.stored() == [0, 1]
        assert await kit.held() == []

    run(tmp_path, body)


def test_a_catalog_that_was_away_catches_up(tmp_path: Path) -> None:
    async def body(kit: Kit) -> None:
        channel = await kit.open()
        await kit.finish(channel)
        apply, kit.catalog.apply_lines = kit.catalog.apply_lines, _away(CatalogUnavailable("away"))  # type: ignore[method-assign]
        await kit.round()
        assert await kit.stored() == [0, 1]
        assert await kit.held() == [0, 1]
        kit.catalog.apply_lines = apply  # type: ignore[method-assign]
        await kit.round()
        assert await kit.status() is TaskStatus.SUCCEEDED
        assert await kit.held() == []

    run(tmp_path, body)


def test_a_gap_in_the_catalog_is_filled_from_the_store(tmp_path: Path) -> None:
    async def body(kit: Kit) -> None:
        channel = await kit.open()
        await kit.round(later_ms=1500)
        assert await kit.held() == []
        kit.catalog = Catalog(f"sqlite:///{tmp_path / 'new.db'}")
        await kit.catalog.migrate()
        kit.projection = Projection(kit.queue, kit.store, kit.catalog, Metrics(NoOpMeterProvider().get_meter("t")))
        await kit.finish(channel)
        await kit.round()
        assert await kit.catalog.applied_through("default", kit.thread_id) == 1
        assert [turn.turn_id for turn in await kit.catalog.list_turns("default", kit.thread_id)] == [kit.turn_id]

    run(tmp_path, body)


def test_two_leaders_do_no_harm(tmp_path: Path) -> None:
    async def body(kit: Kit) -> None:
        channel = await kit.open()
        await kit.finish(channel)
        other = Projection(kit.queue, kit.store, kit.catalog, Metrics(NoOpMeterProvider().get_meter("t")))
        await asyncio.gather(kit.round(), other.round(now_ms=NOW + 5000))
        assert await kit.stored() == [0, 1]
        assert await kit.status() is TaskStatus.SUCCEEDED

    run(tmp_path, body)


def _away(error: Exception) -> Callable[..., Awaitable[None]]:
    async def fail(*args: object, **kwargs: object) -> None:
        raise error

    return fail
