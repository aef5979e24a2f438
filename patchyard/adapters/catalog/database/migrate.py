"""Brings the schema up to date. Two processes that start at once do it one after the other."""

from sqlalchemy import Connection, Engine, inspect, text

from patchyard.adapters.catalog.errors import CatalogMisconfigured

SCHEMA_REVISION = "0002"
"""The newest migration. A test compares it with the folder; a schema that has it needs no migration tool."""
_VERSION_TABLE = "alembic_version"
_ADVISORY_LOCK = 0x5061746368
"""Any fixed number: PostgreSQL's name for "somebody migrates this catalog"."""


def migrate(engine: Engine) -> None:
    """Run all missing migrations in one transaction. CatalogMisconfigured when the schema is newer than the program."""
    with engine.begin() as connection:
        # SQLite: BEGIN IMMEDIATE already keeps the others out. PostgreSQL: a lock that ends with the transaction.
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        if not _is_current(connection):
            from .upgrade import upgrade

            upgrade(connection)


def check_schema(engine: Engine) -> None:
    """CatalogMisconfigured unless the schema is this version's."""
    with engine.connect() as connection:
        if not _is_current(connection):
            raise CatalogMisconfigured("The catalog's tables are missing or of another version. Run `patchyard up`.")


def _is_current(connection: Connection) -> bool:
    if not inspect(connection).has_table(_VERSION_TABLE):
        return False
    return connection.execute(text(f"SELECT version_num FROM {_VERSION_TABLE}")).scalars().all() == [SCHEMA_REVISION]  # noqa: S608
