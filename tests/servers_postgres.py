"""A PostgreSQL server of our own for tests, on a unix socket in a temporary folder, as a user that is not root."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg

_TRY = ("postgres", "nobody")
"""Users that a server may run as when we are root: initdb refuses root."""


def postgres_bin() -> Path | None:
    """Folder of the newest installed server's programs; None: there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """Start a fresh server; gives a SQLAlchemy URL without a database name (append one, see `new_database`)."""
    programs = postgres_bin()
    if programs is None:
        raise RuntimeError("no PostgreSQL server programs: apt-get install postgresql")
    user = _user()
    # Short path: a unix socket's name holds about a hundred bytes.
    folder = Path(tempfile.mkdtemp(prefix="pgtest-", dir="/tmp"))
    try:
        if user is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)
        data = folder / "data"
        _run(user, programs / "initdb", "-D", data, "-U", "patchyard", "--auth=trust", "--encoding=UTF8", "--no-sync")
        options = f"-k {folder} -c listen_addresses='' -c fsync=off -c max_connections=60 -c shared_buffers=16MB"
        _run(user, programs / "pg_ctl", "-D", data, "-w", "-t", "30", "-l", folder / "log", "-o", options, "start")
        try:
            yield f"postgresql://patchyard@/{{name}}?host={folder}"
        finally:
            _run(user, programs / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def new_database(server: str, name: str) -> str:
    """Make an empty database; its URL."""
    host = server.partition("host=")[2]
    with psycopg.connect(f"host={host} user=patchyard dbname=postgres", autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')  # type: ignore[call-overload]
    return server.format(name=name)


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
