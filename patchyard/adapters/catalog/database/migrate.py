"""Brings the schema up to date. Two processes that start at once do it one after the other."""

from pathlib import Path

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import Connection, Engine, text

from patchyard.adapters.catalog.errors import CatalogMisconfigured

from .tables import Base

_FOLDER = Path(__file__).parents[1] / "migrations"
_ADVISORY_LOCK = 0x5061746368
"""Any fixed number: PostgreSQL's name for "somebody migrates this catalog"."""


def migrate(engine: Engine) -> None:
    """Run all missing migrations in one transaction. CatalogMisconfigured when the schema is newer than the program."""
    script = ScriptDirectory(str(_FOLDER))
    with engine.begin() as connection:
        # SQLite: BEGIN IMMEDIATE already keeps the others out. PostgreSQL: a lock that ends with the transaction.
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        _upgrade(connection, script)


def _upgrade(connection: Connection, script: ScriptDirectory) -> None:
    current = MigrationContext.configure(connection).get_current_heads()
    if tuple(current) == tuple(script.get_heads()):
        return

    def steps(revision: tuple[str, ...], _context: MigrationContext) -> object:
        return script._upgrade_revs("head", revision)  # type: ignore[arg-type]

    try:
        with EnvironmentContext(Config(), script, fn=steps, destination_rev="head") as environment:
            environment.configure(connection=connection, target_metadata=Base.metadata, transaction_per_migration=False)
            environment.run_migrations()
    except CommandError as error:
        raise CatalogMisconfigured(
            f"The catalog's schema is from a newer version of Patchyard ({', '.join(current)}). Upgrade this program."
        ) from error


def check_schema(engine: Engine) -> None:
    """CatalogMisconfigured unless the schema is this version's."""
    script = ScriptDirectory(str(_FOLDER))
    with engine.connect() as connection:
        current = MigrationContext.configure(connection).get_current_heads()
    if tuple(current) != tuple(script.get_heads()):
        raise CatalogMisconfigured("The catalog's tables are missing or of another version. Run `patchyard up`.")
