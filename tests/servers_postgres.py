"""A PostgreSQL server of our own for tests, on a unix socket in a temporary folder, as a user that is not root."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

_TRY = ("postgres", "nobody")
"""Users that a server may run as when we are root: initdb refuses root."""


def postgres_bin() -> Path | None:
    """Folder of the newest installed server's programs; None: there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


@dataclass(frozen=True)
class PostgresServer:
    """A running server; `stop` and `start` are for tests of its absence."""

    folder: Path
    programs: Path
    user: pwd.struct_passwd | None

    def new_database(self, name: str) -> str:
        """Make an empty database; its URL."""
        with psycopg.connect(f"host={self.folder} user=patchyard dbname=postgres", autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return f"postgresql://patchyard@/{name}?host={self.folder}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = f"-k {self.folder} -c listen_addresses='' -c fsync=off -c max_connections=60 -c shared_buffers=16MB"
        self._control("-w", "-t", "60", "-l", str(self.folder / "log"), "-o", options, "start")

    def stop(self) -> None:
        """Stop it at once, as a crash would."""
        self._control("-w", "-m", "immediate", "stop")

    def _control(self, *arguments: str) -> None:
        _run(self.user, self.programs / "pg_ctl", "-D", self.folder / "data", *arguments)


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Start a fresh server in a temporary folder; it and the folder are gone afterwards."""
    programs = postgres_bin()
    if programs is None:
        raise RuntimeError("no PostgreSQL server programs: apt-get install postgresql")
    user = _user()
    # Short path: a unix socket's name holds about a hundred bytes.
    folder = Path(tempfile.mkdtemp(prefix="pgtest-", dir="/tmp"))
    try:
        if user is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)
        _run(
            user, programs / "initdb", "-D", folder / "data", "-U", "patchyard", "--auth=trust", "--encoding=UTF8", "--no-sync"
        )
        server = PostgresServer(folder, programs, user)
        server.start()
        try:
            yield server
        finally:
            with contextlib.suppress(RuntimeError):
                server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _user() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    for name in _TRY:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise RuntimeError("PostgreSQL does not run as root and there is no other user to run it as")


def _run(user: pwd.struct_passwd | None, *command: object) -> None:
    identity = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        cwd="/",
        env={"PATH": os.defpath, "LC_ALL": "C"},
        **identity,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {done.stdout}{done.stderr}")
