"""A catalog that cannot be used says why and what to do."""

import asyncio
import os
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from patchyard.adapters.catalog import Catalog, CatalogDiskFull, CatalogError, CatalogMisconfigured, CatalogUnavailable
from patchyard.adapters.catalog.database.translation import translate

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "not a database URL"),
        ("nonsense", "not a database URL"),
        ("mysql://u:secret@h/x", "not on mysql"),
        ("sqlite://", "must outlive"),
        ("sqlite:///:memory:", "must outlive"),
    ],
)
def test_a_url_that_names_no_catalog_is_refused(url: str, message: str) -> None:
    with pytest.raises(CatalogMisconfigured, match=message) as caught:
        Catalog(url)
    assert "secret" not in str(caught.value)


def test_a_server_that_is_not_there_is_told_without_the_password() -> None:
    with socket.socket() as placeholder:
        placeholder.bind(("127.0.0.1", 0))
        port = placeholder.getsockname()[1]

        async def run() -> None:
            catalog = Catalog(f"postgresql://user:secret@127.0.0.1:{port}/name")
            for call in (catalog.check(), catalog.list_tasks("default"), catalog.migrate()):
                with pytest.raises(CatalogUnavailable, match="PATCHYARD_CATALOG_URL") as caught:
                    await call
                assert caught.value.retryable
                assert "secret" not in str(caught.value)
            await catalog.close()

        asyncio.run(run())


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_bytes(b"not a database, but long enough to look at " * 50)

    async def run() -> None:
        catalog = Catalog(f"sqlite:///{tmp_path}/catalog.db")
        with pytest.raises(CatalogMisconfigured, match="not a database"):
            await catalog.migrate()
        await catalog.close()

    asyncio.run(run())


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    async def run() -> None:
        catalog = Catalog(f"sqlite:///{tmp_path}/file/catalog.db")
        with pytest.raises(CatalogMisconfigured, match="PATCHYARD_HOME"):
            await catalog.migrate()
        await catalog.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("database or disk is full", CatalogDiskFull),
        ("no such table: tasks", CatalogMisconfigured),
        ("attempt to write a readonly database", CatalogMisconfigured),
        ("database is locked", CatalogUnavailable),
        ("disk I/O error", CatalogUnavailable),
    ],
)
def test_the_databases_words_become_an_error_with_a_remedy(text: str, kind: type[CatalogError]) -> None:
    error = translate(OperationalError("SELECT secret", {"p": "secret"}, sqlite3.OperationalError(text)))
    assert type(error) is kind
    assert "secret" not in str(error)


def test_a_full_disk_is_told_and_nothing_is_half_done(tmp_path: Path) -> None:
    async def fill(catalog: Catalog) -> None:
        for number in range(200):
            await catalog.create_token("default", "n" * 4000, f"{number:064}")

    async def run() -> None:
        catalog = Catalog(f"sqlite:///{tmp_path}/catalog.db")
        await catalog.migrate()
        with catalog._db.engine.connect() as connection:
            # The limit holds for the pool's one connection: calls that follow each other share it.
            connection.exec_driver_sql("PRAGMA max_page_count=1")
        with pytest.raises(CatalogDiskFull, match="Free disk space"):
            await fill(catalog)
        assert all(token.name == "n" * 4000 for token in await catalog.list_tokens("default"))
        await catalog.close()

    asyncio.run(run())


def test_the_databases_settings_hold(tmp_path: Path) -> None:
    async def run() -> None:
        catalog = Catalog(f"sqlite:///{tmp_path}/catalog.db")
        await catalog.migrate()
        await catalog.close()
        await catalog.close()

    asyncio.run(run())
    with sqlite3.connect(tmp_path / "catalog.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_importing_opens_nothing() -> None:
    code = (
        "import os, patchyard.adapters.catalog.migrations.versions.v0001_initial, patchyard.adapters.catalog;"
        "print(len(os.listdir('/proc/self/fd')) <= 5)"
    )
    environment = {**os.environ, "PATCHYARD_CATALOG_URL": "postgresql://nowhere/x"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
