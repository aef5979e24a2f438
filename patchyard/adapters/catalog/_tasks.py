"""Statements on tasks."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import bindparam, case, delete, or_, select, update
from sqlalchemy.orm import Session

from patchyard.protocol.tasks import GitSource, TaskListResponse, TaskStatus, TaskView

from . import _cursor
from ._views import SUBMITTING, clean, repository_key, task_values, task_view
from .database.insert import insert_or_ignore
from .database.tables import TaskRow
from .errors import NotFound
from .records import CreatedTask

_MAX_PAGE = 200
"""Each task carries its whole specification."""
_MAX_WORDS = 16
"""Of a text query: each is one more pass over the text."""


_MARK_QUEUED = (
    update(TaskRow)
    .where(TaskRow.tenant_id == bindparam("of_tenant"), TaskRow.id == bindparam("of_id"))
    .values(submitted=True, reason=case((TaskRow.reason == SUBMITTING, "queued"), else_=TaskRow.reason))
)
"""Built once, and run on the connection: see `insert_or_ignore`."""


@dataclass(frozen=True)
class Filters:
    """What a list of tasks is narrowed by."""

    status: TaskStatus | None
    repository: str | None
    query: str | None


def create(session: Session, view: TaskView, idempotency_key: str | None) -> CreatedTask:
    """See Catalog.create_task."""
    values = task_values(view, idempotency_key)
    if insert_or_ignore(session, TaskRow, values):
        written = {"status": TaskStatus.QUEUED, "reason": SUBMITTING, "title": values["title"]}
        return CreatedTask(view.model_copy(update=written), duplicate=False)
    same = TaskRow.id == view.id
    if idempotency_key is not None:
        same = or_(same, TaskRow.idempotency_key == idempotency_key)
    row = session.scalars(select(TaskRow).where(TaskRow.tenant_id == view.tenant_id, same)).first()
    if row is None:
        raise NotFound("task", view.id)
    return CreatedTask(task_view(row), duplicate=True)


def mark_queued(session: Session, tenant_id: str, task_id: str) -> None:
    """See Catalog.mark_queued. The reason stays when a worker was faster."""
    keys = {"of_tenant": tenant_id, "of_id": task_id}
    if session.connection().execute(_MARK_QUEUED, keys).rowcount == 0:
        raise NotFound("task", task_id)


def discard(session: Session, tenant_id: str, task_id: str) -> bool:
    """See Catalog.discard_task."""
    remove = delete(TaskRow).where(TaskRow.tenant_id == tenant_id, TaskRow.id == task_id, TaskRow.submitted.is_(False))
    return session.scalars(remove.returning(TaskRow.id)).first() is not None


def stale_submitting(session: Session, older_than_ms: int, limit: int) -> Sequence[TaskView]:
    """See Catalog.stale_submitting."""
    newest = time.time_ns() // 1_000_000 - older_than_ms
    query = select(TaskRow).where(TaskRow.submitted.is_(False), TaskRow.created_at <= newest)
    return [task_view(row) for row in session.scalars(query.order_by(TaskRow.created_at, TaskRow.id).limit(limit))]


def get(session: Session, tenant_id: str, task_id: str) -> TaskView:
    """See Catalog.get_task."""
    row = session.get(TaskRow, (tenant_id, clean(task_id)))
    if row is None:
        raise NotFound("task", task_id)
    return task_view(row)


def of_thread(session: Session, tenant_id: str, thread_id: str) -> TaskView:
    """See Catalog.task_of_thread."""
    query = select(TaskRow).where(TaskRow.tenant_id == tenant_id, TaskRow.thread_id == clean(thread_id))
    row = session.scalars(query).one_or_none()
    if row is None:
        raise NotFound("task of thread", thread_id)
    return task_view(row)


def page(session: Session, tenant_id: str, filters: Filters, cursor: str | None, limit: int) -> TaskListResponse:
    """See Catalog.list_tasks. Ids are UUIDv7, so their order is that of creation."""
    marks = (tenant_id, filters.status, filters.repository, filters.query)
    query = select(TaskRow).where(TaskRow.tenant_id == tenant_id)
    if filters.status is not None:
        query = query.where(TaskRow.status == filters.status.value)
    if filters.repository:
        query = query.where(TaskRow.repository == repository_key(GitSource(url=filters.repository)))
    for word in clean(filters.query or "").casefold().split()[:_MAX_WORDS]:
        query = query.where(TaskRow.search.contains(word, autoescape=True))
    if cursor is not None:
        query = query.where(TaskRow.id < _cursor.decode(cursor, *marks))
    size = min(max(limit, 1), _MAX_PAGE)
    rows = session.scalars(query.order_by(TaskRow.id.desc()).limit(size + 1)).all()
    shown = rows[:size]
    following = _cursor.encode(shown[-1].id, *marks) if len(rows) > size else None
    return TaskListResponse(data=tuple(task_view(row) for row in shown), next_cursor=following)
