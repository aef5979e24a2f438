"""The catalog's interface."""

import asyncio
from collections.abc import Iterable, Sequence

from patchyard.protocol.approvals import ApprovalListResponse, ApprovalView
from patchyard.protocol.rollout_lines import RolloutLine
from patchyard.protocol.tasks import TaskListResponse, TaskStatus, TaskView

from . import _approvals, _projection, _tasks, _tokens
from ._projection import ThreadKey
from .database.engine import Database, make_parent
from .database.migrate import check_schema, migrate
from .records import CreatedTask, ProjectionResult, RememberedRules, ThreadSummary, TokenRecord, TurnSummary


class Catalog:
    """Tasks, threads' summaries and tokens in one database. Every method raises CatalogError."""

    def __init__(self, url: str) -> None:
        """`url`: postgresql://… or sqlite:////file. CatalogMisconfigured when it is neither. Nothing is contacted yet."""
        self._db = Database(url)

    async def migrate(self) -> None:
        """Bring the schema up to date. Any number of processes may do it at once; a SQLite file and its folder are created."""
        await asyncio.to_thread(make_parent, self._db.url)
        await self._db.run(lambda: migrate(self._db.exclusive()))

    async def check(self) -> None:
        """Whether the database answers and has this version's tables."""
        await self._db.run(lambda: check_schema(self._db.engine))

    async def close(self) -> None:
        """Give threads and connections back. Twice is harmless."""
        await self._db.close()

    # --- tasks ----------------------------------------------------------------------------------

    async def create_task(self, view: TaskView, idempotency_key: str | None = None) -> CreatedTask:
        """Write down a task before it is submitted. A known idempotency key of the tenant: the first task, as duplicate.

        The row's reason is `submitting` until mark_queued; of several callers with one key exactly one creates.
        """
        return await self._db.write(lambda session: _tasks.create(session, view, idempotency_key))

    async def mark_queued(self, tenant_id: str, task_id: str) -> None:
        """The queue has the task. Twice is harmless. NotFound."""
        await self._db.write(lambda session: _tasks.mark_queued(session, tenant_id, task_id), durable=False)

    async def discard_task(self, tenant_id: str, task_id: str) -> bool:
        """Forget a task that the queue refused. False: it is not there, or the queue has it."""
        return await self._db.write(lambda session: _tasks.discard(session, tenant_id, task_id))

    async def stale_submitting(self, older_than_ms: int, *, limit: int = 100) -> Sequence[TaskView]:
        """Tasks of every tenant written down at least so many milliseconds ago and not marked queued, oldest first."""
        return await self._db.read(lambda session: _tasks.stale_submitting(session, older_than_ms, limit))

    async def get_task(self, tenant_id: str, task_id: str) -> TaskView:
        """A task. NotFound."""
        return await self._db.read(lambda session: _tasks.get(session, tenant_id, task_id))

    async def task_of_thread(self, tenant_id: str, thread_id: str) -> TaskView:
        """The task that owns a thread. NotFound."""
        return await self._db.read(lambda session: _tasks.of_thread(session, tenant_id, thread_id))

    async def list_tasks(
        self,
        tenant_id: str,
        *,
        status: TaskStatus | None = None,
        repository: str | None = None,
        query: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> TaskListResponse:
        """A page of tasks, newest first; `limit` is 1 to 200. InvalidCursor.

        `repository` is its URL (`.git` or not). `query`: every word must be in title, instruction or repository, in any case.
        """
        filters = _tasks.Filters(status=status, repository=repository, query=query)
        return await self._db.read(lambda session: _tasks.page(session, tenant_id, filters, cursor, limit))

    # --- projection of threads ------------------------------------------------------------------

    async def apply_lines(self, tenant_id: str, thread_id: str, lines: Sequence[RolloutLine]) -> ProjectionResult:
        """Fold a thread's next records into its rows. Records that were applied before are skipped.

        ProjectionGap: records are missing before these, nothing was written; call reindex_thread.
        """
        key = ThreadKey(tenant_id, thread_id)
        return await self._db.write(lambda session: _projection.apply_lines(session, key, lines), durable=False)

    async def reindex_thread(self, tenant_id: str, thread_id: str, lines: Iterable[RolloutLine]) -> ProjectionResult:
        """Rebuild a thread's rows, and its task's, from the whole rollout."""
        key = ThreadKey(tenant_id, thread_id)
        return await self._db.write(lambda session: _projection.reindex(session, key, lines))

    async def applied_through(self, tenant_id: str, thread_id: str) -> int:
        """Highest ordinal that the rows hold; -1: none."""
        key = ThreadKey(tenant_id, thread_id)
        return await self._db.read(lambda session: _projection.applied_through(session, key))

    async def get_thread(self, tenant_id: str, thread_id: str) -> ThreadSummary:
        """A thread's summary. NotFound before its first records were projected."""
        key = ThreadKey(tenant_id, thread_id)
        return await self._db.read(lambda session: _projection.summary(session, key))

    async def list_turns(self, tenant_id: str, thread_id: str) -> Sequence[TurnSummary]:
        """A thread's turns, oldest first; none when there is no such thread."""
        key = ThreadKey(tenant_id, thread_id)
        return await self._db.read(lambda session: _projection.turns(session, key))

    # --- approvals ------------------------------------------------------------------------------

    async def recall_approvals(self, tenant_id: str, repository: str, thread_id: str) -> RememberedRules:
        """What counts for a repository (named as by `policy.approval_key`), and what a thread was told and counts no more."""
        return await self._db.read(lambda session: _approvals.recall(session, tenant_id, repository, thread_id))

    async def list_approvals(
        self,
        tenant_id: str,
        *,
        repository: str | None = None,
        revoked: bool = False,
        cursor: str | None = None,
        limit: int = 50,
    ) -> ApprovalListResponse:
        """A page of approvals, newest first; `limit` is 1 to 200. `revoked`: also those that count no more. InvalidCursor."""
        filters = _approvals.Filters(repository, revoked)
        return await self._db.read(lambda session: _approvals.page(session, tenant_id, filters, cursor, limit))

    async def revoke_approval(self, tenant_id: str, approval_id: str, *, by: str | None = None) -> ApprovalView:
        """Take back what it allows, whoever else allowed the same on its repository. Twice is harmless. NotFound."""
        return await self._db.write(lambda session: _approvals.revoke(session, tenant_id, approval_id, by))

    # --- tokens ---------------------------------------------------------------------------------

    async def create_token(self, tenant_id: str, name: str, sha256: str, *, local: bool = False) -> TokenRecord:
        """Store a token's SHA-256 (hex). The same hash of the same tenant again: the record that is there."""
        return await self._db.write(lambda session: _tokens.create(session, tenant_id, name, sha256, local=local))

    async def find_token(self, sha256: str) -> TokenRecord | None:
        """The token with this SHA-256 (hex), which tells the tenant; None: unknown or revoked."""
        found = await self._db.read(lambda session: _tokens.find(session, sha256))
        if found is None or not _tokens.should_touch(found):
            return found
        return await self._db.write(lambda session: _tokens.touch(session, found), durable=False)

    async def list_tokens(self, tenant_id: str) -> Sequence[TokenRecord]:
        """The tenant's tokens, also revoked ones, oldest first."""
        return await self._db.read(lambda session: _tokens.of_tenant(session, tenant_id))

    async def revoke_token(self, tenant_id: str, token_id: str) -> None:
        """The token is refused from now on. Twice is harmless. NotFound."""
        await self._db.write(lambda session: _tokens.revoke(session, tenant_id, token_id))
