"""Files of a local folder as the patch library sees them, and the writer that changes all of them or none."""

import contextlib
import os
import secrets
import shutil
import signal
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from patchyard.patch import FileProblem, FileText, Operation, PathRefused, RemoveFile, WriteFile

_NEW_FILE_MODE = 0o666
"""Before the umask."""


class LocalFiles:
    """The files below one folder. Symbolic links are followed only as long as they stay inside."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.realpath(root))
        self.applied = False
        """Whether `apply` did its work, also when an interrupt comes out of it."""

    def read(self, key: str) -> FileText | None:
        """See `patchyard.patch.ReadFile`."""
        path = self._place(key)
        try:
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                return self._read_link(path)
            return _read_entry(path, status)
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise FileProblem(f"{key}: a part of this path is a file, not a folder. Choose another path.", path=key) from None
        except OSError as error:
            raise FileProblem(f"{key}: can not be read ({_reason(error)}). Nothing was changed.", path=key) from None

    def apply(self, operations: Sequence[Operation]) -> None:
        """Do all operations or, when one fails, none. Raises FileProblem. An interrupt waits until it is done."""
        with _interrupts_wait():
            batch = _Batch()
            try:
                for operation in operations:
                    self._prepare(operation, batch)
                batch.commit()
                self.applied = True
            except OSError as error:
                path = self._shown(error.filename)
                raise FileProblem(f"{path}: can not be written ({_reason(error)}). Nothing was changed.", path=path) from None
            finally:
                batch.clean()

    def _prepare(self, operation: Operation, batch: "_Batch") -> None:
        place = self._place(operation.key)
        match operation:
            case RemoveFile():
                batch.removals.append(place)
            case WriteFile():
                target = Path(os.path.realpath(place))
                if not target.is_relative_to(self.root):
                    raise _outside(operation.key)
                batch.stage(target, operation)

    def _place(self, key: str) -> Path:
        """The entry itself: links in its folder are followed, the last part is not."""
        path = self.root / key
        folder = Path(os.path.realpath(path.parent))
        if not folder.is_relative_to(self.root):
            raise _outside(key)
        return folder / path.name

    def _read_link(self, path: Path) -> FileText:
        target = Path(os.path.realpath(path))
        if not target.is_relative_to(self.root):
            return FileText(b"", kind="outside_link")
        key = target.relative_to(self.root).as_posix()
        if not target.exists():
            return FileText(b"", target=key, kind="dangling_link")
        found = _read_entry(target, target.stat())
        return FileText(found.data, found.mode, key, found.kind)

    def _shown(self, filename: object) -> str:
        if not isinstance(filename, str):
            return "a file"
        path = Path(filename)
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else path.name


@dataclass
class _Batch:
    """Staged contents, and what has to be undone."""

    removals: list[Path] = field(default_factory=list)
    _writes: list["_Write"] = field(default_factory=list)
    _kept: list["_Kept"] = field(default_factory=list)
    _created: list[Path] = field(default_factory=list)
    """New entries, folders before what is in them."""
    _done: bool = False

    def stage(self, target: Path, operation: WriteFile) -> None:
        """Write the content beside its future place, in the nearest folder that exists."""
        status = target.stat() if target.exists() else None
        if status is not None and not os.access(target, os.W_OK):
            raise PermissionError(13, "Permission denied", str(target))
        folder = target.parent
        while not folder.is_dir():
            folder = folder.parent
        write = _Write(_spare_name(folder), target)
        self._writes.append(write)
        descriptor = os.open(write.staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _NEW_FILE_MODE)
        with open(descriptor, "wb") as file:
            file.write(operation.data)
            if operation.mode is not None:
                os.fchmod(descriptor, operation.mode)
            if status is not None:
                with contextlib.suppress(PermissionError):
                    os.fchown(descriptor, status.st_uid, status.st_gid)

    def commit(self) -> None:
        """Put everything in its place; undo all of it when something fails."""
        try:
            for path in self.removals:
                self._set_aside(path)
            for write in self._writes:
                self._make_folders(write.target.parent)
                if write.target.exists():
                    self._keep_copy(write.target)
                else:
                    self._created.append(write.target)
                write.staged.replace(write.target)
            self._done = True
        except BaseException:
            self._undo()
            raise

    def clean(self) -> None:
        """Remove spare files that are left."""
        for write in self._writes:
            write.staged.unlink(missing_ok=True)
        if self._done:
            for kept in self._kept:
                kept.spare.unlink(missing_ok=True)

    def _set_aside(self, path: Path) -> None:
        kept = _Kept(_spare_name(path.parent), path)
        path.rename(kept.spare)
        self._kept.append(kept)

    def _keep_copy(self, path: Path) -> None:
        kept = _Kept(_spare_name(path.parent), path)
        try:
            os.link(path, kept.spare)
        except OSError:  # no hard links on this file system
            shutil.copy2(path, kept.spare)
        self._kept.append(kept)

    def _make_folders(self, folder: Path) -> None:
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for new in reversed(missing):
            new.mkdir()
            self._created.append(new)

    def _undo(self) -> None:
        for path in reversed(self._created):
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        for kept in reversed(self._kept):
            kept.spare.replace(kept.path)
            kept.spare.unlink(missing_ok=True)  # renaming a hard link onto its own file does nothing


@dataclass(frozen=True)
class _Write:
    staged: Path
    target: Path


@dataclass(frozen=True)
class _Kept:
    spare: Path
    path: Path


@contextlib.contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Hold back Ctrl-C and SIGTERM: between the first spare file and the last rename there is no good moment to stop."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _read_entry(path: Path, status: os.stat_result) -> FileText:
    if stat.S_ISDIR(status.st_mode):
        return FileText(b"", kind="folder")
    if not stat.S_ISREG(status.st_mode):
        return FileText(b"", kind="special")
    return FileText(path.read_bytes(), stat.S_IMODE(status.st_mode))


def _spare_name(folder: Path) -> Path:
    return folder / f".patchyard-{secrets.token_hex(8)}.tmp"


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()


def _outside(key: str) -> PathRefused:
    return PathRefused(
        f"`{key}` leads outside of the current folder through a symbolic link. Use a path inside it. Nothing was changed.",
        path=key,
    )
