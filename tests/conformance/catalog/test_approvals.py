"""Approvals of repositories, on SQLite and PostgreSQL; and the agent's memory over them, which a double stands for elsewhere."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from patchyard.adapters.catalog import Catalog, InvalidCursor, NotFound
from patchyard.agent.recall import Recalled
from patchyard.protocol.approvals import AllowedCommand, AllowedPath, AllowedPrefix, ApprovalRule
from patchyard.protocol.events import ApprovalRemembered, TurnCompleted
from patchyard.protocol.ids import new_id
from patchyard.protocol.tasks import ArchiveSource, GitSource
from patchyard.testing.approvals import RepositoryMemory
from tests.rollout_lines import USAGE, Thread
from workers.running.approvals import RepositoryApprovals

TOOL = "https://github.com/acme/tool"
MAKE = AllowedCommand(script="make \0", cwd="/workspace")
NPM = AllowedPrefix(words=("npm", "run"))
FILE = AllowedPath(path="/workspace/a.py")


def using(url: str, work: Callable[[Catalog], Awaitable[None]]) -> None:
    async def run() -> None:
        catalog = Catalog(url)
        try:
            await catalog.migrate()
            await work(catalog)
        finally:
            await catalog.close()

    asyncio.run(run())


def thread_with(*rules: ApprovalRule, repository: str = TOOL, tenant: str = "default", by: str | None = "anna") -> Thread:
    thread = Thread(tenant_id=tenant)
    turn = new_id()
    event = ApprovalRemembered(approval_id=new_id(), repository=repository, rules=rules, by=by)
    thread.add(thread.meta(), thread.started(), event, turn=turn)
    thread.add(TurnCompleted(usage=USAGE, model_requests=1, tool_calls=1, duration_ms=9), turn=turn)
    return thread


async def project(catalog: Catalog, thread: Thread) -> None:
    await catalog.apply_lines(thread.tenant_id, thread.thread_id, thread.lines)


async def listed(catalog: Catalog, tenant: str = "default", **filters: Any) -> list[ApprovalRule]:
    return [approval.rule for approval in (await catalog.list_approvals(tenant, **filters)).data]


def test_what_a_record_says_is_listed_with_who_when_and_where(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        thread = thread_with(NPM, FILE)
        await project(catalog, thread)
        first, second = (await catalog.list_approvals("default")).data
        assert {first.rule.type, second.rule.type} == {"prefix", "path"}
        for approval in (first, second):
            assert (approval.repository, approval.thread_id, approval.task_id) == (TOOL, thread.thread_id, thread.task_id)
            assert (approval.approved_by, approval.approved_at) == ("anna", thread.lines[2].timestamp)
            assert (approval.revoked_by, approval.revoked_at) == (None, None)

    using(url, work)


def test_projecting_again_neither_doubles_nor_revives(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        thread = thread_with(NPM)
        await project(catalog, thread)
        (approval,) = (await catalog.list_approvals("default")).data
        revoked = await catalog.revoke_approval("default", approval.id, by="bob")
        assert (revoked.revoked_by, revoked.revoked_at is not None) == ("bob", True)
        await project(catalog, thread)
        await catalog.reindex_thread("default", thread.thread_id, thread.lines)
        assert (await catalog.list_approvals("default", revoked=True)).data == (revoked,)
        assert await listed(catalog) == []
        assert await catalog.revoke_approval("default", approval.id, by="eve") == revoked

    using(url, work)


def test_a_database_that_was_lost_does_not_revive_what_was_revoked(url: str) -> None:
    """It is made again from rollouts, which do not know of revocations: better to ask once more."""

    async def work(catalog: Catalog) -> None:
        lost, behind = thread_with(NPM), thread_with(FILE)
        await catalog.reindex_thread("default", lost.thread_id, lost.lines)
        await catalog.apply_lines("default", behind.thread_id, behind.lines[:1])
        await catalog.reindex_thread("default", behind.thread_id, behind.lines)
        assert await listed(catalog, revoked=True) == [FILE]

    using(url, work)


def test_no_tenant_sees_or_revokes_what_another_allowed(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        mine, theirs = thread_with(NPM), thread_with(NPM, tenant="other")
        await project(catalog, mine)
        await project(catalog, theirs)
        (approval,) = (await catalog.list_approvals("default")).data
        with pytest.raises(NotFound, match="patchyard approvals list"):
            await catalog.revoke_approval("other", approval.id)
        await catalog.revoke_approval("default", approval.id)
        assert (await listed(catalog), await listed(catalog, "other")) == ([], [NPM])
        assert (await catalog.recall_approvals("other", TOOL, mine.thread_id)).allowed == {NPM}
        assert (await catalog.recall_approvals("third", TOOL, mine.thread_id)).allowed == frozenset()

    using(url, work)


def test_the_same_from_several_tasks_is_revoked_at_once_and_can_be_allowed_anew(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        first, second = thread_with(NPM, FILE), thread_with(NPM)
        elsewhere = thread_with(NPM, repository=f"{TOOL}2")
        for thread in (first, second, elsewhere):
            await project(catalog, thread)
        approval = next(a for a in (await catalog.list_approvals("default")).data if a.rule == NPM and a.repository == TOOL)
        await catalog.revoke_approval("default", approval.id)
        assert await listed(catalog, repository=f"{TOOL}.git") == [FILE]
        assert await listed(catalog, repository=f"{TOOL}2/") == [NPM]
        known = await catalog.recall_approvals("default", TOOL, first.thread_id)
        assert (known.allowed, known.revoked) == ({FILE}, {NPM: 1})
        known = await catalog.recall_approvals("default", TOOL, new_id())
        assert (known.allowed, known.revoked) == ({FILE}, {})
        await project(catalog, thread_with(NPM))
        known = await catalog.recall_approvals("default", TOOL, first.thread_id)
        assert (known.allowed, known.revoked) == ({FILE, NPM}, {})

    using(url, work)


def test_pages_are_walked_to_the_end_with_one_set_of_filters(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        rules = [AllowedPath(path=f"/workspace/{n}") for n in range(5)]
        await project(catalog, thread_with(*rules))
        seen: list[ApprovalRule] = []
        cursor = None
        while True:
            page = await catalog.list_approvals("default", repository=TOOL, cursor=cursor, limit=2)
            seen += [approval.rule for approval in page.data]
            cursor = page.next_cursor
            if cursor is None:
                break
            with pytest.raises(InvalidCursor):
                await catalog.list_approvals("default", cursor=cursor)
        assert len(seen) == len(rules)
        assert set(seen) == set(rules)

    using(url, work)


@pytest.mark.parametrize("kind", ["real", "double"])
def test_the_memory_of_an_agent(url: str, kind: str) -> None:
    async def work(catalog: Catalog) -> None:
        thread = thread_with(NPM, FILE)
        double = RepositoryMemory(TOOL)
        source = GitSource(url=f"{TOOL}.git")
        real = RepositoryApprovals.of(catalog, source, tenant_id="default", thread_id=thread.thread_id)
        memory = real if kind == "real" else double
        assert memory is not None
        assert await memory.recall() == Recalled()
        await project(catalog, thread)
        double.learn(line.payload for line in thread.lines)  # type: ignore[misc]
        assert await memory.recall() == Recalled(frozenset({NPM, FILE}))
        approval = next(a for a in (await catalog.list_approvals("default")).data if a.rule == NPM)
        await catalog.revoke_approval("default", approval.id)
        double.revoke(NPM)
        assert await memory.recall() == Recalled(frozenset({FILE}), {NPM: 1})

    using(url, work)


def test_without_a_catalog_or_a_repository_nothing_is_known(url: str) -> None:
    async def run() -> None:
        catalog = Catalog(url)  # its tables are not there
        try:
            memory = RepositoryApprovals.of(catalog, GitSource(url=TOOL), tenant_id="default", thread_id=new_id())
            assert memory is not None
            assert await memory.recall() == Recalled()
            upload = ArchiveSource(artefact_id="a1", format="bundle")
            assert RepositoryApprovals.of(catalog, upload, tenant_id="default", thread_id=new_id()) is None
        finally:
            await catalog.close()

    asyncio.run(run())


def test_text_that_a_database_can_not_hold_is_cleaned(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        await project(catalog, thread_with(MAKE, by="an\0na"))
        (approval,) = (await catalog.list_approvals("default")).data
        assert approval.approved_by == "an\ufffdna"

    using(url, work)
