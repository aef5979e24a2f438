"""What earlier releases have stored is read by this one: Redis, catalog, object store, rollout."""

import asyncio
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from patchyard.adapters.catalog import Catalog
from patchyard.adapters.queue import QueueCore
from patchyard.adapters.store import FilesystemStore, StoredSegments
from patchyard.protocol.tasks import TaskStatus, TaskView
from patchyard.rollout import build_trace, decode_line, load_thread, read_lines, thread_prefix
from tests.servers import Flavour, redis_server

KEPT = sorted((Path(__file__).parents[2] / "fixtures/upgrade").glob("*.tar.gz"))


@pytest.fixture(params=KEPT, ids=lambda path: path.name.removesuffix(".tar.gz"))
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(request.param) as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.fixture
def task(home: Path) -> Iterator[dict[str, Any]]:
    return json.loads((home / "task.json").read_text())


def test_the_first_release_is_kept() -> None:
    assert "0.1.0.tar.gz" in [path.name for path in KEPT]


def test_the_catalog_is_migrated_and_shows_the_task_as_it_was(home: Path, task: dict[str, Any]) -> None:
    async def look() -> TaskView:
        catalog = Catalog(f"sqlite:///{home / 'catalog.db'}")
        try:
            await catalog.migrate()
            return await catalog.get_task("default", task["id"])
        finally:
            await catalog.close()

    view = asyncio.run(look())
    assert (view.status, view.verified, view.trace_id) == (TaskStatus.SUCCEEDED, True, task["trace_id"])
    assert view.patch is not None
    assert view.patch.artefact_id == task["patch"]["artefact_id"]


@pytest.mark.redis
@pytest.mark.parametrize("flavour", ["redis", "valkey"])
def test_the_queue_goes_on_with_the_thread(home: Path, task: dict[str, Any], flavour: Flavour) -> None:
    async def look(url: str) -> None:
        queue = QueueCore(url)
        await queue.open()
        try:
            state = await queue.thread_state(task["thread_id"])
            assert state is not None
            assert (state.status.value, state.active_turn_id) == ("idle", None)
            assert state.next_ordinal > 0
            for line in await queue.read_lines(task["thread_id"], after=None, limit=1000):
                decode_line(line.json)
        finally:
            await queue.close()

    with redis_server(home / "redis", flavour) as url:
        asyncio.run(look(url))


def test_the_rollout_gives_history_and_trace(home: Path, task: dict[str, Any]) -> None:
    async def look() -> None:
        segments = StoredSegments(FilesystemStore(home / "objects"))
        prefix = thread_prefix("default", task["thread_id"])
        lines = [decode_line(line.json) async for line in read_lines(segments, prefix)]
        assert [line.ordinal for line in lines] == list(range(len(lines)))
        restored = await load_thread(segments, "default", task["thread_id"])
        assert restored.turn is None
        assert restored.history
        root = build_trace(lines).root
        assert root is not None
        assert root.children

    asyncio.run(look())
