"""Statements on tokens."""

import time
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from patchyard.protocol.ids import new_id

from ._views import clean, token_record
from .database.insert import insert_or_ignore
from .database.tables import TokenRow
from .errors import NotFound
from .records import TokenRecord

_PRECISION_MS = 60_000
"""A token's last use is written at most so often: looking one up should not be a write."""


def _now() -> int:
    return time.time_ns() // 1_000_000


def create(session: Session, tenant_id: str, name: str, sha256: str, *, local: bool) -> TokenRecord:
    """See Catalog.create_token."""
    values = {
        "tenant_id": tenant_id,
        "id": new_id(),
        "sha256": sha256,
        "name": clean(name),
        "local": local,
        "created_at": _now(),
    }
    insert_or_ignore(session, TokenRow, values)
    row = session.scalars(select(TokenRow).where(TokenRow.tenant_id == tenant_id, TokenRow.sha256 == sha256)).one_or_none()
    if row is None:
        # The hash belongs to another tenant: say no more than that.
        raise NotFound("token", name)
    return token_record(row)


def find(session: Session, sha256: str) -> TokenRecord | None:
    """See Catalog.find_token. The one query without a tenant: its answer is the tenant."""
    row = session.scalars(select(TokenRow).where(TokenRow.sha256 == clean(sha256), TokenRow.revoked_at.is_(None))).one_or_none()
    return token_record(row) if row is not None else None


def should_touch(token: TokenRecord) -> bool:
    """Whether its last use is out of date."""
    return token.last_used_at is None or _now() - token.last_used_at >= _PRECISION_MS


def touch(session: Session, token: TokenRecord) -> TokenRecord | None:
    """Write its last use; None when it was revoked meanwhile."""
    row = session.get(TokenRow, (token.tenant_id, token.id), with_for_update=True)
    if row is None or row.revoked_at is not None:
        return None
    row.last_used_at = _now()
    return token_record(row)


def of_tenant(session: Session, tenant_id: str) -> Sequence[TokenRecord]:
    """See Catalog.list_tokens."""
    query = select(TokenRow).where(TokenRow.tenant_id == tenant_id)
    return [token_record(row) for row in session.scalars(query.order_by(TokenRow.created_at, TokenRow.id))]


def revoke(session: Session, tenant_id: str, token_id: str) -> None:
    """See Catalog.revoke_token."""
    row = session.get(TokenRow, (tenant_id, clean(token_id)), with_for_update=True)
    if row is None:
        raise NotFound("token", token_id)
    row.revoked_at = row.revoked_at or _now()
