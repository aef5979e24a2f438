"""What FilesystemStore does with files: blocking functions, run in its executor."""

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .errors import StoreDiskFull, StoreError, StoreMisconfigured, StoreUnavailable
from .ports import ObjectInfo, ObjectSlice

TEMP_FOLDER = ".tmp"
"""Below the root, so that rename and link stay inside one file system. No key can start with a dot."""
_LEFTOVER_AGE_S = 60
"""A younger file may belong to a writer that has created it but not locked it yet."""


class TempFile:
    """A file that only its writer sees. Its lock tells the others that the writer lives."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / secrets.token_hex(16)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._open = True
        with suppress(OSError):
            # Some network file systems have no locks; then age alone protects the file.
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write(self, data: bytes) -> None:
        """Append all of it. OSError."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def sync(self) -> None:
        """Bring the content to the disk. OSError."""
        os.fsync(self._fd)

    def discard(self) -> None:
        """Close it and remove its temporary name. Twice is harmless."""
        if not self._open:
            return
        self._open = False
        with suppress(FileNotFoundError):
            os.unlink(self.path)
        os.close(self._fd)


def clean_leftovers(folder: Path) -> None:
    """Remove temporary files whose writer is gone."""
    oldest_kept = time.time() - _LEFTOVER_AGE_S
    for entry in list(os.scandir(folder)):
        with suppress(OSError):
            if entry.stat(follow_symlinks=False).st_mtime > oldest_kept:
                continue
            fd = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(entry.path)
            finally:
                os.close(fd)


def make_folders(folder: Path) -> None:
    """Create a folder with its parents, each entry brought to the disk. OSError."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Bring a folder's entries to the disk. OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_slice(path: Path, *, start: int, length: int | None, suffix: int | None) -> ObjectSlice:
    """Part of a file. OSError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        first = max(size - suffix, 0) if suffix is not None else min(start, size)
        wanted = size - first if suffix is not None or length is None else length
        file.seek(first)
        return ObjectSlice(file.read(wanted), first, size)


def walk(root: Path, prefix: str, after: str | None) -> Iterator[ObjectInfo]:
    """Files below `root` whose key starts with `prefix` and is greater than `after`, in key order. OSError."""
    folder, _, _ = prefix.rpartition("/")
    base = f"{folder}/" if folder else ""
    yield from _walk_folder(root / folder, base, prefix, after)


def _walk_folder(folder: Path, base: str, prefix: str, after: str | None) -> Iterator[ObjectInfo]:
    # A folder sorts as its name plus the slash, so that the order is that of whole keys ("a.b" < "a/b").
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name + "/" if entry.is_dir() else entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        key = base + entry.name
        if entry.is_dir():
            below = f"{key}/"
            skipped = after is not None and below < after and not after.startswith(below)
            if not skipped and (below.startswith(prefix) or prefix.startswith(below)):
                yield from _walk_folder(folder / entry.name, below, prefix, after)
        elif key.startswith(prefix) and (after is None or key > after):
            with suppress(FileNotFoundError):
                stat = entry.stat()
                yield ObjectInfo(key, stat.st_size, stat.st_mtime_ns // 1_000_000)


def translate(error: OSError, root: Path) -> StoreError:
    """The store's error for an operating system's."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return StoreDiskFull(str(root))
        case errno.EACCES | errno.EPERM | errno.EROFS:
            hint = "Make the folder writable for this user, on a file system with hard links"
            return StoreMisconfigured(f"No right to use {root}: {error.strerror}. {hint}, or set PATCHYARD_STORE_URL.")
        case errno.EOPNOTSUPP | errno.EXDEV | errno.EMLINK:
            return StoreMisconfigured(
                f"The file system of {root} cannot link files: {error.strerror}. Move the folder to another one or use S3."
            )
        case errno.ENOENT | errno.ENOTDIR | errno.EEXIST:
            return StoreMisconfigured(f"{root} is not a usable folder: {error.strerror}. Set PATCHYARD_STORE_URL to a folder.")
        case _:
            return StoreUnavailable(f"The object store in {root} failed: {error.strerror}. It is tried again; check the disk.")
