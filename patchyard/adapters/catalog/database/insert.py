"""The one statement that the two databases spell differently for SQLAlchemy."""

from functools import cache
from typing import Any

from sqlalchemy import Executable
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from .tables import Base


def insert_or_ignore(session: Session, table: type[Base], values: dict[str, Any]) -> bool:
    """Insert a row unless one of its unique keys is taken. False: it is; of several callers exactly one gets True."""
    connection = session.connection()  # the session's own way for one row costs more than all the rest (decision 0104)
    statement = _statement(table, postgres=connection.dialect.name == "postgresql")
    return connection.execute(statement, values).first() is not None


@cache
def _statement(table: type[Base], *, postgres: bool) -> Executable:
    """Built once: making it anew takes longer than running it."""
    insert = postgresql.insert if postgres else sqlite.insert
    return insert(table).on_conflict_do_nothing().returning(table.__table__.c.tenant_id)
