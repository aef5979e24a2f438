"""Tasks in the catalog, on SQLite and PostgreSQL."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from patchyard.adapters.catalog import Catalog, CatalogError, InvalidCursor, NotFound
from patchyard.protocol.ids import new_id
from patchyard.protocol.tasks import TaskStatus, TaskView
from tests.rollout_lines import T0, spec


def using(url: str, work: Callable[[Catalog], Awaitable[None]]) -> None:
    async def run() -> None:
        catalog = Catalog(url)
        try:
            await catalog.migrate()
            await catalog.check()
            await work(catalog)
        finally:
            await catalog.close()

    asyncio.run(run())


def view(number: int = 0, **changes: object) -> TaskView:
    values = {
        "id": new_id(T0 + number),
        "tenant_id": "default",
        "thread_id": new_id(T0 + number),
        "turn_id": new_id(T0 + number),
        "status": TaskStatus.QUEUED,
        "reason": "submitting",
        "title": f"Task {number}",
        "spec": spec(),
        "created_at": T0 + number,
        "trace_id": "0" * 31 + "1",
    }
    return TaskView.model_validate({**values, **changes})


def test_a_task_reads_back_as_it_was_created(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        task = view(spec=spec("NUL \0 and ünïcode 𝄞"))
        created = await catalog.create_task(task, None)
        assert (created.view, created.duplicate) == (task, False)
        assert await catalog.get_task("default", task.id) == task
        assert await catalog.task_of_thread("default", task.thread_id) == task
        await catalog.mark_queued("default", task.id)
        await catalog.mark_queued("default", task.id)
        assert await catalog.get_task("default", task.id) == task.model_copy(update={"reason": "queued"})

    using(url, work)


def test_the_same_key_again_is_the_same_task(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        first, second, elsewhere = view(1), view(2), view(3, tenant_id="other")
        await catalog.create_task(first, "key")
        again = await catalog.create_task(second, "key")
        assert (again.view, again.duplicate) == (first, True)
        assert (await catalog.create_task(first, "key")).duplicate
        assert not (await catalog.create_task(elsewhere, "key")).duplicate
        assert not (await catalog.create_task(second, None)).duplicate

    using(url, work)


def test_of_many_callers_with_one_key_exactly_one_creates(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        other = Catalog(url)
        created = await asyncio.gather(
            *((catalog, other)[number % 2].create_task(view(number), "race") for number in range(20))
        )
        assert [item.duplicate for item in created].count(False) == 1
        assert len({item.view.id for item in created}) == 1
        assert len((await catalog.list_tasks("default")).data) == 1
        await other.close()

    using(url, work)


def test_another_tenants_task_is_not_found(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        task = view()
        await catalog.create_task(task, None)
        for call in (
            catalog.get_task("other", task.id),
            catalog.task_of_thread("other", task.thread_id),
            catalog.mark_queued("other", task.id),
            catalog.get_task("default", "nonsense\0"),
            catalog.get_thread("other", task.thread_id),
        ):
            with pytest.raises(NotFound) as caught:
                await call
            assert caught.value.info.code == "not_found"
        assert not await catalog.discard_task("other", task.id)
        assert (await catalog.list_tasks("other")).data == ()

    using(url, work)


def test_tasks_that_were_not_marked_queued_are_swept(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        now = time.time_ns() // 1_000_000
        old, older, fresh, queued = view(created_at=now - 20_000), view(created_at=now - 30_000), view(created_at=now), view()
        for task in (old, older, fresh, queued):
            await catalog.create_task(task, None)
        await catalog.mark_queued("default", queued.id)
        assert list(await catalog.stale_submitting(10_000)) == [older, old]
        assert list(await catalog.stale_submitting(10_000, limit=1)) == [older]
        assert await catalog.discard_task("default", older.id)
        assert not await catalog.discard_task("default", queued.id)
        assert list(await catalog.stale_submitting(10_000)) == [old]

    using(url, work)


def test_lists_are_newest_first_and_pages_neither_skip_nor_repeat(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        tasks = [view(number) for number in range(7)]
        for task in tasks:
            await catalog.create_task(task, None)
        seen: list[str] = []
        page = await catalog.list_tasks("default", limit=3)
        while True:
            seen += [task.id for task in page.data]
            if page.next_cursor is None:
                break
            await catalog.create_task(view(100 + len(seen)), None)  # newer ones do not disturb later pages
            page = await catalog.list_tasks("default", limit=3, cursor=page.next_cursor)
        assert seen == [task.id for task in reversed(tasks)]

    using(url, work)


def test_lists_are_narrowed_by_status_repository_and_words(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        plain = view(1, title="Crash in parser")
        odd = view(2, spec=spec("Speed is 100%_ of the ÄLTER one", "https://git.example.org/a/b/"))
        for task in (plain, odd):
            await catalog.create_task(task, None)

        async def found(**filters: object) -> list[str]:
            return [task.id for task in (await catalog.list_tasks("default", **filters)).data]  # type: ignore[arg-type]

        assert await found(status=TaskStatus.QUEUED) == [odd.id, plain.id]
        assert await found(status=TaskStatus.FAILED) == []
        assert await found(repository="https://github.com/acme/tool") == [plain.id]
        assert await found(repository="https://git.example.org/a/b.git") == [odd.id]
        assert await found(query="PARSER crash") == [plain.id]
        assert await found(query="100%_ älter") == [odd.id]
        assert await found(query="100x_") == []
        assert await found(query="acme") == [plain.id]
        assert await found(query="%") == [odd.id]
        assert await found(query="  ") == [odd.id, plain.id]
        assert await found(limit=0) == [odd.id]

    using(url, work)


@pytest.mark.parametrize("cursor", ["", "x", "é", "bnVsbA", "WzEsIjAiLCJ4Il0", "W10", "====", "a" * 5000])
def test_a_cursor_that_is_not_of_this_list_is_refused(url: str, cursor: str) -> None:
    async def work(catalog: Catalog) -> None:
        with pytest.raises(InvalidCursor):
            await catalog.list_tasks("default", cursor=cursor)

    using(url, work)


def test_a_cursor_holds_only_for_its_filters(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        for number in range(3):
            await catalog.create_task(view(number), None)
        cursor = (await catalog.list_tasks("default", limit=1)).next_cursor
        for call in (catalog.list_tasks("default", query="x", cursor=cursor), catalog.list_tasks("other", cursor=cursor)):
            with pytest.raises(CatalogError):
                await call

    using(url, work)


def test_tokens(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        mine = await catalog.create_token("default", "laptop", "a" * 64, local=True)
        theirs = await catalog.create_token("other", "ci", "b" * 64)
        assert await catalog.create_token("default", "laptop again", "a" * 64) == mine
        found = await catalog.find_token("a" * 64)
        assert found is not None
        assert (found.id, found.tenant_id, found.local, found.revoked_at) == (mine.id, "default", True, None)
        assert found.last_used_at is not None
        assert await catalog.find_token("a" * 64) == found
        assert await catalog.find_token("c" * 64) is None
        assert [token.id for token in await catalog.list_tokens("other")] == [theirs.id]
        with pytest.raises(NotFound):
            await catalog.revoke_token("other", mine.id)
        with pytest.raises(NotFound):
            await catalog.create_token("other", "stolen", "a" * 64)
        await catalog.revoke_token("default", mine.id)
        await catalog.revoke_token("default", mine.id)
        assert await catalog.find_token("a" * 64) is None

    using(url, work)
