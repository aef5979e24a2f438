"""Removal of folders off every turn's path, and a journal of host paths so that nothing outlives a worker that was killed.

Each worker process holds a lock on its journal. A journal whose lock is free belonged to a process that is gone.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import stat
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Journal:
    """Host folders that this process made and has not given up yet, as lines `{"op": "made" | "gone", "path": …}`."""

    def __init__(self, folder: Path, worker_id: str) -> None:
        self.path = folder / f"{worker_id}.jsonl"
        self._handle: int | None = None

    def open(self) -> None:
        """Take the journal's lock. OSError when the folder can't be used."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._handle, fcntl.LOCK_EX)

    def made(self, path: Path) -> None:
        """Note a folder before it is made."""
        self._write("made", path)

    def gone(self, path: Path) -> None:
        """Note that it is in the trash or gone."""
        self._write("gone", path)

    def close(self) -> None:
        """Give the lock back; an empty journal is removed."""
        if self._handle is None:
            return
        if not open_paths(self.path):
            self.path.unlink(missing_ok=True)
        os.close(self._handle)
        self._handle = None

    def _write(self, op: str, path: Path) -> None:
        if self._handle is not None:
            os.write(self._handle, (json.dumps({"op": op, "path": str(path)}) + "\n").encode())


def open_paths(journal: Path) -> list[Path]:
    """Folders that a journal says were made and not given up. A torn last line is harmless."""
    paths: dict[str, None] = {}
    with contextlib.suppress(FileNotFoundError):
        for line in journal.read_bytes().splitlines():
            try:
                entry = json.loads(line)
                path, op = entry["path"], entry["op"]
            except (ValueError, KeyError, TypeError):
                continue
            if op == "made":
                paths[path] = None
            else:
                paths.pop(path, None)
    return [Path(path) for path in paths]


class Trash:
    """A folder on the same file system: throwing away is a rename, emptying happens in the background."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._emptying: set[asyncio.Task[None]] = set()

    def throw_away(self, path: Path) -> None:
        """Move a folder here and begin to delete it. Missing folders are fine."""
        self._folder.mkdir(parents=True, exist_ok=True)
        target = self._folder / uuid.uuid4().hex
        try:
            path.rename(target)
        except FileNotFoundError:
            return
        task = asyncio.ensure_future(_in_background(target))
        self._emptying.add(task)
        task.add_done_callback(self._emptying.discard)

    async def empty(self) -> int:
        """Delete what lies here, also from earlier processes; returns how many folders."""
        entries = list(self._folder.iterdir()) if self._folder.is_dir() else []
        for entry in entries:
            await _in_background(entry)
        return len(entries)

    async def settle(self) -> None:
        """Wait until all that was thrown away is deleted."""
        await asyncio.gather(*self._emptying, return_exceptions=True)


async def _in_background(path: Path) -> None:
    """Delete on a thread that a process which has to go does not wait for: a large tree takes minutes on some disks."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def work() -> None:
        delete_tree(path)
        with contextlib.suppress(RuntimeError):  # the loop is gone already
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=work, name="workspace-trash", daemon=True).start()
    await done.wait()


def delete_tree(path: Path) -> None:
    """Delete a folder whose contents are untrusted: links are not followed, folders without permissions are opened first."""
    shutil.rmtree(path, onerror=_open_and_retry)


def _open_and_retry(function: Callable[..., Any], path: str, info: object) -> None:
    del info
    with contextlib.suppress(OSError):
        parent = os.path.dirname(path)
        for folder in (parent, path):
            mode = os.lstat(folder).st_mode
            if stat.S_ISDIR(mode):
                os.chmod(folder, 0o700)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)
    del function


def take_orphans(folder: Path, *, roots: Path) -> list[Path]:
    """Folders below `roots` that dead processes left; their journals are removed, so each is answered once."""
    orphans: list[Path] = []
    for journal in sorted(folder.glob("*.jsonl")) if folder.is_dir() else []:
        try:
            handle = os.open(journal, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            orphans += [path for path in open_paths(journal) if roots in path.parents and path.is_dir()]
            journal.unlink(missing_ok=True)
        except BlockingIOError:
            continue
        finally:
            os.close(handle)
    return orphans
