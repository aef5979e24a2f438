"""Runs the missing migrations. Alembic costs 11 MiB and 0.1 s of CPU, so only a process that migrates loads this module."""

from pathlib import Path

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import Connection

from patchyard.adapters.catalog.errors import CatalogMisconfigured

from .tables import Base

_FOLDER = Path(__file__).parents[1] / "migrations"


def scripts() -> ScriptDirectory:
    """All migrations of this version."""
    return ScriptDirectory(str(_FOLDER))


def upgrade(connection: Connection) -> None:
    """Bring the schema up to date in the open transaction. CatalogMisconfigured when it is newer than the program."""
    script = scripts()
    current = MigrationContext.configure(connection).get_current_heads()

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
