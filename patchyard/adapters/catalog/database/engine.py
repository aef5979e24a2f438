"""The engine behind async methods: a sized executor, transactions that suit each database, errors translated."""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.orm import Session

from patchyard.adapters.catalog.errors import CatalogMisconfigured

from .translation import translate

_POSTGRES_CONNECTIONS = 8
"""Per process. A PostgreSQL server takes 100 by default: enough for ten processes."""
_SQLITE_CONNECTIONS = 4
"""Readers beside the one writer that SQLite allows."""
_BUSY_TIMEOUT_MS = 10_000
"""How long a SQLite writer waits for another one."""
_BUSY_PAUSE_S = 0.01

_T = TypeVar("_T")


class _Mode(Enum):
    """What a transaction is for."""

    READ = "read"
    WRITE = "write"
    DURABLE_WRITE = "durable write"


class Database:
    """One database, used from one event loop at a time. Nothing is contacted before the first call."""

    def __init__(self, url: str) -> None:
        self.url = _checked(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        threads = _SQLITE_CONNECTIONS if self.is_sqlite else _POSTGRES_CONNECTIONS
        self.engine = _sqlite_engine(self.url, threads) if self.is_sqlite else _postgres_engine(self.url, threads)
        self._executor = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="catalog")

    async def read(self, work: Callable[[Session], _T]) -> _T:
        """Run `work` in a transaction that only reads. CatalogError."""
        return await self.run(lambda: self._transaction(work, _Mode.READ))

    async def write(self, work: Callable[[Session], _T], *, durable: bool = True) -> _T:
        """Run `work` in a transaction and commit it. CatalogError.

        Not `durable`: a power cut may take back the last ones on SQLite (never damage it). Fit for what is projected again.
        """
        mode = _Mode.DURABLE_WRITE if durable else _Mode.WRITE
        return await self.run(lambda: self._transaction(work, mode))

    def exclusive(self) -> Engine:
        """The engine for one durable write outside of a session: a migration."""
        return self.engine.execution_options(patchyard_mode=_Mode.DURABLE_WRITE)

    async def run(self, work: Callable[[], _T]) -> _T:
        """Run blocking work in the executor, with the database's errors translated."""

        def translated() -> _T:
            try:
                return work()
            except SQLAlchemyError as error:
                raise translate(error) from error

        return await asyncio.get_running_loop().run_in_executor(self._executor, translated)

    async def close(self) -> None:
        """Give threads and connections back. Twice is harmless."""
        await asyncio.to_thread(self._executor.shutdown)
        await asyncio.to_thread(self.engine.dispose)

    def _transaction(self, work: Callable[[Session], _T], mode: "_Mode") -> _T:
        engine = self.engine.execution_options(patchyard_mode=mode)
        with Session(engine, expire_on_commit=False) as session, session.begin():
            return work(session)


def _checked(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise CatalogMisconfigured(
            "PATCHYARD_CATALOG_URL is not a database URL. Use postgresql://user:password@host/name or sqlite:////folder/catalog.db."
        ) from None
    match parsed.get_backend_name():
        case "sqlite":
            if parsed.database in (None, "", ":memory:"):
                raise CatalogMisconfigured("The catalog must outlive its process: give a file, sqlite:////folder/catalog.db.")
            return parsed.set(drivername="sqlite")
        case "postgresql":
            return parsed.set(drivername="postgresql+psycopg")
        case other:
            raise CatalogMisconfigured(f"The catalog runs on PostgreSQL or SQLite, not on {other}. Set PATCHYARD_CATALOG_URL.")


def _postgres_engine(url: URL, connections: int) -> Engine:
    return create_engine(
        url,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=10,
        pool_pre_ping=True,
        pool_recycle=1800,
        # A server that vanished without a word must not hold a thread for the kernel's quarter of an hour.
        connect_args={"connect_timeout": 5, "keepalives_idle": 15, "tcp_user_timeout": 15_000},
    )


def _sqlite_engine(url: URL, connections: int) -> Engine:
    engine = create_engine(
        url, pool_size=connections, max_overflow=0, pool_timeout=10, connect_args={"timeout": _BUSY_TIMEOUT_MS / 1000}
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:
        # The driver's own transactions begin too late (before the first change only); `begin` below does it instead.
        connection.isolation_level = None
        for pragma in (f"busy_timeout={_BUSY_TIMEOUT_MS}", "foreign_keys=ON", "temp_store=MEMORY"):
            connection.execute(f"PRAGMA {pragma}")
        _keep_a_log(connection)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        mode = connection.get_execution_options().get("patchyard_mode", _Mode.READ)
        if mode is _Mode.READ:
            connection.exec_driver_sql("BEGIN")
            return
        connection.exec_driver_sql(f"PRAGMA synchronous={'FULL' if mode is _Mode.DURABLE_WRITE else 'NORMAL'}")
        # Taking the write lock at once avoids the deadlock of two readers that both want to write.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _keep_a_log(connection: sqlite3.Connection) -> None:
    """Readers beside a writer. In a new file two processes may switch at once: SQLite refuses one of them without waiting."""
    until = time.monotonic() + _BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        time.sleep(_BUSY_PAUSE_S)


def make_parent(url: URL) -> None:
    """Create the folder of a SQLite database. CatalogMisconfigured."""
    if url.get_backend_name() != "sqlite" or url.database is None:
        return
    folder = Path(url.database).absolute().parent
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise CatalogMisconfigured(
            f"The catalog's folder {folder} cannot be made: {error.strerror}. Set PATCHYARD_CATALOG_URL or PATCHYARD_HOME."
        ) from error
