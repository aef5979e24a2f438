"""The one statement that the two databases spell differently for SQLAlchemy."""

from typing import Any

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from .tables import Base


def insert_or_ignore(session: Session, table: type[Base], values: dict[str, Any]) -> bool:
    """Insert a row unless one of its unique keys is taken. False: it is; of several callers exactly one gets True."""
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    statement = insert(table).values(**values).on_conflict_do_nothing().returning(table.__table__.c.tenant_id)
    return session.execute(statement).first() is not None
