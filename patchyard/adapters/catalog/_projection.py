"""Folds a thread's records into its rows. Every line is applied once: the projection remembers the last ordinal."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from patchyard.protocol.events import ApprovalRemembered
from patchyard.protocol.ids import created_at
from patchyard.protocol.rollout_lines import EventMsgLine, RolloutLine, SessionMeta, SessionMetaLine

from ._approvals import Record, remember
from ._fold import fold_event
from ._views import clean, repository_key, search_text, thread_summary, turn_summary
from .database.insert import insert_or_ignore
from .database.tables import ProjectionRow, TaskRow, ThreadRow, TurnRow
from .errors import NotFound
from .records import Projected, ProjectionGap, ProjectionResult, ThreadSummary, TurnSummary

_TITLE = 120
"""Characters of an instruction's first line that serve as title of a task that only its rollout knows."""


class ThreadKey(NamedTuple):
    """A thread of a tenant."""

    tenant_id: str
    thread_id: str


def apply_lines(session: Session, key: ThreadKey, lines: Sequence[RolloutLine]) -> ProjectionResult:
    """Fold the lines that are new. Lines that were applied before are skipped; a gap writes nothing."""
    projection = _locked_projection(session, key)
    new = [line for line in lines if line.ordinal > projection.applied_through]
    if (gap := _gap(new, projection.applied_through + 1)) is not None:
        return gap
    _fold(session, key, new)
    return _advance(projection, new)


def reindex(session: Session, key: ThreadKey, lines: Iterable[RolloutLine]) -> ProjectionResult:
    """Forget what was projected of the thread and fold the whole rollout. A gap in it changes nothing.

    Approvals of a thread that the database does not know do not come back: it would not know either which were revoked.
    """
    whole = list(lines)
    if (gap := _gap(whole, 0)) is not None:
        return gap
    projection = _locked_projection(session, key)
    session.execute(delete(TurnRow).where(TurnRow.tenant_id == key.tenant_id, TurnRow.thread_id == key.thread_id))
    session.execute(delete(ThreadRow).where(ThreadRow.tenant_id == key.tenant_id, ThreadRow.thread_id == key.thread_id))
    task = _task_of(session, key)
    if task is not None:
        _reset(task)
    known = projection.applied_through
    projection.applied_through = -1
    session.flush()
    _fold(session, key, whole, approvals_after=known if known >= 0 else len(whole))
    return _advance(projection, whole)


def _advance(projection: ProjectionRow, lines: Sequence[RolloutLine]) -> Projected:
    projection.applied_through += len(lines)
    return Projected(applied_through=projection.applied_through)


def _gap(lines: Sequence[RolloutLine], first: int) -> ProjectionGap | None:
    for expected, line in enumerate(lines, start=first):
        if line.ordinal != expected:
            return ProjectionGap(expected=expected, found=line.ordinal)
    return None


def _locked_projection(session: Session, key: ThreadKey) -> ProjectionRow:
    # Inserting first makes the row lock below work for a thread's first lines, too.
    insert_or_ignore(session, ProjectionRow, {**key._asdict(), "applied_through": -1})
    row = session.get(ProjectionRow, (key.tenant_id, key.thread_id), with_for_update=True, populate_existing=True)
    if row is None:
        raise AssertionError("the row was just inserted")
    return row


def _task_of(session: Session, key: ThreadKey) -> TaskRow | None:
    query = select(TaskRow).where(TaskRow.tenant_id == key.tenant_id, TaskRow.thread_id == key.thread_id)
    return session.scalars(query.with_for_update()).one_or_none()


def _fold(session: Session, key: ThreadKey, lines: Sequence[RolloutLine], *, approvals_after: int = -1) -> None:
    if not lines:
        return
    task = _task_of(session, key)
    thread = session.get(ThreadRow, (key.tenant_id, key.thread_id)) or _new_thread(session, key, task, lines[0].timestamp)
    turns: dict[str, TurnRow | None] = {}
    for line in lines:
        thread.last_activity_at = max(thread.last_activity_at, line.timestamp)
        match line:
            case SessionMetaLine():
                thread.task_id = line.payload.task_id
                task = task or _task_from_meta(session, key, line.payload)
            case EventMsgLine(payload=ApprovalRemembered() as msg):
                if line.ordinal > approvals_after:
                    remember(session, thread, Record(line.ordinal, line.timestamp), msg)
            case EventMsgLine():
                turn = _turn_of(session, key, turns, line.turn_id)
                opened = fold_event(line, task=task, thread=thread, turn=turn)
                if opened is not None:
                    session.add(opened)
                    turns[opened.turn_id] = opened
            case _:
                pass
    session.flush()


def _turn_of(session: Session, key: ThreadKey, known: dict[str, TurnRow | None], turn_id: str | None) -> TurnRow | None:
    if turn_id is None:
        return None
    if turn_id not in known:
        known[turn_id] = session.get(TurnRow, (key.tenant_id, key.thread_id, turn_id))
    return known[turn_id]


def _new_thread(session: Session, key: ThreadKey, task: TaskRow | None, timestamp: int) -> ThreadRow:
    row = ThreadRow(
        tenant_id=key.tenant_id,
        thread_id=key.thread_id,
        task_id=task.id if task is not None else None,
        closed=False,
        created_at=timestamp,
        last_activity_at=timestamp,
    )
    session.add(row)
    session.flush()
    return row


def _task_from_meta(session: Session, key: ThreadKey, meta: SessionMeta) -> TaskRow | None:
    """The row of a task that the catalog has lost; None: the thread has no task, or the task has another thread."""
    if meta.task_id is None or session.get(TaskRow, (key.tenant_id, meta.task_id)) is not None:
        return None
    title = clean(meta.spec.instruction.strip().splitlines()[0][:_TITLE])
    row = TaskRow(
        tenant_id=key.tenant_id,
        id=meta.task_id,
        thread_id=key.thread_id,
        submitted=True,
        title=title,
        repository=repository_key(meta.spec.repository),
        search=search_text(title, meta.spec),
        spec=meta.spec.model_dump_json(),
        created_at=int(created_at(meta.task_id).timestamp() * 1000),
    )
    _reset(row)
    session.add(row)
    return row


def _reset(task: TaskRow) -> None:
    task.submitted = True
    task.status = "queued"
    task.reason = "queued"
    for column in ("started_at", "completed_at", "verified", "verify", "patch", "usage", "cost_usd", "error", "final_message"):
        setattr(task, column, None)


def applied_through(session: Session, key: ThreadKey) -> int:
    """See Catalog.applied_through."""
    row = session.get(ProjectionRow, (key.tenant_id, key.thread_id))
    return row.applied_through if row is not None else -1


def turns(session: Session, key: ThreadKey) -> Sequence[TurnSummary]:
    """See Catalog.list_turns."""
    query = select(TurnRow).where(TurnRow.tenant_id == key.tenant_id, TurnRow.thread_id == key.thread_id)
    return [turn_summary(row) for row in session.scalars(query.order_by(TurnRow.started_at, TurnRow.turn_id))]


def summary(session: Session, key: ThreadKey) -> ThreadSummary:
    """See Catalog.get_thread."""
    row = session.get(ThreadRow, (key.tenant_id, key.thread_id))
    if row is None:
        raise NotFound("thread", key.thread_id)
    last = session.get(TurnRow, (*key, row.last_turn_id)) if row.last_turn_id is not None else None
    count = select(func.count()).where(TurnRow.tenant_id == key.tenant_id, TurnRow.thread_id == key.thread_id)
    return thread_summary(row, session.scalar(count) or 0, last)
