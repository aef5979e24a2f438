"""The schema's history, on SQLite and PostgreSQL."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, text

from patchyard.adapters.catalog import Catalog, CatalogMisconfigured
from patchyard.adapters.catalog.database.migrate import SCHEMA_REVISION
from patchyard.adapters.catalog.database.tables import Base
from patchyard.adapters.catalog.database.upgrade import scripts
from tests.waiting import PROCESS_S

_MIGRATE = """
import asyncio, sys
from patchyard.adapters.catalog import Catalog

async def main():
    catalog = Catalog(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    await catalog.migrate()
    await catalog.check()
    await catalog.close()

asyncio.run(main())
"""


def migrate(url: str) -> None:
    async def run() -> None:
        catalog = Catalog(url)
        await catalog.migrate()
        await catalog.close()

    asyncio.run(run())


def engine_url(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://")


def test_a_new_sqlite_file_that_another_process_prepares_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    # SQLite would refuse the change to a write-ahead log at once, whatever its busy timeout.
    release = threading.Timer(0.5, other.execute, ("COMMIT",))
    release.start()
    migrate(f"sqlite:///{path}")
    release.join()
    other.close()


def test_processes_that_start_at_once_migrate_once(url: str) -> None:
    command = [sys.executable, "-W", "error", "-c", _MIGRATE, url]
    root = Path(__file__).parents[3]
    processes = [
        subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outcomes = [(process.communicate(timeout=PROCESS_S)[1], process.returncode) for process in processes]
    assert outcomes == [("", 0)] * len(processes)


def test_the_migrated_schema_is_the_one_that_the_tables_describe(url: str) -> None:
    migrate(url)
    engine = create_engine(engine_url(url))
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    engine.dispose()


def test_a_schema_of_a_newer_version_is_refused(url: str) -> None:
    migrate(url)
    engine = create_engine(engine_url(url))
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()

    async def run() -> None:
        catalog = Catalog(url)
        with pytest.raises(CatalogMisconfigured, match=r"newer version.*9999"):
            await catalog.migrate()
        with pytest.raises(CatalogMisconfigured, match="another version"):
            await catalog.check()
        await catalog.close()

    asyncio.run(run())


def test_the_revision_that_needs_no_migration_is_the_newest() -> None:
    assert scripts().get_heads() == [SCHEMA_REVISION]


def test_every_table_begins_its_key_with_the_tenant() -> None:
    for table in Base.metadata.sorted_tables:
        assert next(iter(table.primary_key)).name == "tenant_id"


def test_an_empty_database_says_what_to_do(url: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()

    async def run() -> None:
        catalog = Catalog(url)
        with pytest.raises(CatalogMisconfigured, match="patchyard up"):
            await catalog.list_tasks("default")
        with pytest.raises(CatalogMisconfigured, match="patchyard up"):
            await catalog.check()
        await catalog.close()

    asyncio.run(run())
