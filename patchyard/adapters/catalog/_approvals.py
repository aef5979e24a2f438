"""Statements on approvals."""

import hashlib
import time
from collections import Counter
from typing import NamedTuple

from pydantic import TypeAdapter
from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from patchyard.policy import approval_key
from patchyard.protocol.approvals import ApprovalListResponse, ApprovalRule, ApprovalView
from patchyard.protocol.events import ApprovalRemembered
from patchyard.protocol.ids import derived_id
from patchyard.protocol.tasks import GitSource

from . import _cursor
from ._views import clean
from .database.insert import insert_or_ignore
from .database.tables import ApprovalRow, ThreadRow
from .errors import NotFound
from .records import RememberedRules

_RULE: TypeAdapter[ApprovalRule] = TypeAdapter(ApprovalRule)
_MAX_PAGE = 200
_RECALLED = 2_000
"""Rules of one repository that count, the newest ones: what is beyond is asked again."""


class Record(NamedTuple):
    """Where a remembered approval stands in its thread."""

    ordinal: int
    timestamp: int


def remember(session: Session, thread: ThreadRow, record: Record, msg: ApprovalRemembered) -> None:
    """Write down what a thread's record says. Again: nothing changes, also when it was revoked meanwhile."""
    for index, rule in enumerate(msg.rules):
        seed = f"{thread.tenant_id}/{thread.thread_id}/{record.ordinal}/{index}"
        text = clean(rule.model_dump_json())
        values = {
            "tenant_id": thread.tenant_id,
            "id": derived_id(record.timestamp, seed),
            "repository": clean(msg.repository),
            "rule": text,
            "rule_sha256": hashlib.sha256(text.encode()).hexdigest(),
            "thread_id": thread.thread_id,
            "task_id": thread.task_id,
            "approved_by": clean(msg.by) if msg.by is not None else None,
            "approved_at": record.timestamp,
        }
        insert_or_ignore(session, ApprovalRow, values)


def recall(session: Session, tenant_id: str, repository: str, thread_id: str) -> RememberedRules:
    """See Catalog.recall_approvals."""
    query = select(ApprovalRow.rule, ApprovalRow.revoked_at).where(
        ApprovalRow.tenant_id == tenant_id,
        ApprovalRow.repository == clean(repository),
        or_(ApprovalRow.revoked_at.is_(None), ApprovalRow.thread_id == thread_id),
    )
    rows = session.execute(query.order_by(ApprovalRow.id.desc()).limit(_RECALLED)).all()
    allowed = {rule for rule, revoked_at in rows if revoked_at is None}
    revoked = Counter(rule for rule, _ in rows if rule not in allowed)
    times = {_RULE.validate_json(rule): count for rule, count in revoked.items()}
    return RememberedRules(frozenset(map(_RULE.validate_json, allowed)), times)


class Filters(NamedTuple):
    """What a list of approvals is narrowed by."""

    repository: str | None
    """Its URL or path; None: all."""
    revoked: bool
    """Whether revoked ones are listed, too."""


def page(session: Session, tenant_id: str, filters: Filters, cursor: str | None, limit: int) -> ApprovalListResponse:
    """See Catalog.list_approvals."""
    repository = approval_key(GitSource(url=filters.repository)) if filters.repository else None
    marks = ("approvals", tenant_id, repository, str(filters.revoked))
    query = select(ApprovalRow).where(ApprovalRow.tenant_id == tenant_id)
    if repository is not None:
        query = query.where(ApprovalRow.repository == clean(repository))
    if not filters.revoked:
        query = query.where(ApprovalRow.revoked_at.is_(None))
    if cursor is not None:
        query = query.where(ApprovalRow.id < _cursor.decode(cursor, *marks))
    size = min(max(limit, 1), _MAX_PAGE)
    rows = session.scalars(query.order_by(ApprovalRow.id.desc()).limit(size + 1)).all()
    shown = rows[:size]
    following = _cursor.encode(shown[-1].id, *marks) if len(rows) > size else None
    return ApprovalListResponse(data=tuple(_view(row) for row in shown), next_cursor=following)


def revoke(session: Session, tenant_id: str, approval_id: str, by: str | None) -> ApprovalView:
    """See Catalog.revoke_approval."""
    row = session.get(ApprovalRow, (tenant_id, clean(approval_id)), with_for_update=True)
    if row is None:
        raise NotFound("approval", approval_id)
    same = update(ApprovalRow).where(
        ApprovalRow.tenant_id == tenant_id,
        ApprovalRow.repository == row.repository,
        ApprovalRow.rule_sha256 == row.rule_sha256,
        ApprovalRow.revoked_at.is_(None),
    )
    session.execute(same.values(revoked_at=time.time_ns() // 1_000_000, revoked_by=clean(by) if by is not None else None))
    session.refresh(row)
    return _view(row)


def _view(row: ApprovalRow) -> ApprovalView:
    return ApprovalView(
        id=row.id,
        tenant_id=row.tenant_id,
        repository=row.repository,
        rule=_RULE.validate_json(row.rule),
        thread_id=row.thread_id,
        task_id=row.task_id,
        approved_by=row.approved_by,
        approved_at=row.approved_at,
        revoked_by=row.revoked_by,
        revoked_at=row.revoked_at,
    )
