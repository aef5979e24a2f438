"""Protected names of a workspace as mounts of the box: what exists becomes read-only, what does not can't be created.

The paths are looked at before the box starts, while nothing runs on the workspace, and without following any symlink: a
link as the source of a mount would show the host's files in the box.
"""

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ._confinement import PROTECTED_NAMES
from .errors import BoxRefused

_OPENAT2 = 437
_RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 0x04, 0x08


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class Protection(NamedTuple):
    """What must be mounted over a workspace, by path relative to it, and what could not be protected."""

    read_only: tuple[str, ...]
    """Existing files and folders: bind them over themselves, read-only."""
    absent: tuple[str, ...]
    """Mount an empty read-only file system here."""
    links: tuple[str, ...]
    """Symlinks of a protected name: a mount would land elsewhere; file operations still refuse them."""
    git_directory: str | None
    """In-box path that the workspace's `.git` file points to."""


def _open_beneath(root: int, path: str) -> int:
    """O_PATH descriptor without following a symlink anywhere. OSError ELOOP on one."""
    if hasattr(os, "O_PATH"):
        how = _OpenHow(os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW, 0, _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH)
        fd = ctypes.CDLL(None, use_errno=True).syscall(_OPENAT2, root, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
        if fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return int(fd)
    return _open_stepwise(root, path)


def _open_stepwise(root: int, path: str) -> int:
    """The same where there is no openat2."""
    current = os.dup(root)
    for part in path.split("/"):
        try:
            following = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=current)
        finally:
            os.close(current)
        current = following
    return current


def _nested_git(root: int) -> Iterator[str]:
    """`.git` entries below the top of the workspace, as submodules and vendored clones have them."""
    for folder, directories, files, _ in os.fwalk(".", dir_fd=root, follow_symlinks=False):
        if folder != "." and (".git" in directories or ".git" in files):
            yield os.path.normpath(f"{folder}/.git")
        directories[:] = [name for name in directories if name != ".git"]


def _pointed_to(root: int, fd: int) -> str | None:
    """The absolute path in a `.git` file's `gitdir:` line."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return None
    reading = os.open(".git", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
    try:
        line = os.read(reading, 4096).decode(errors="replace").partition("\n")[0]
    finally:
        os.close(reading)
    path = line.removeprefix("gitdir:").strip()
    return path if line.startswith("gitdir:") and path.startswith("/") else None


def examine(workspace: Path) -> Protection:
    """Look at a workspace on this host. BoxRefused: no such folder, or a `.git` that is a symlink."""
    read_only: list[str] = []
    absent: list[str] = []
    links: list[str] = []
    git_directory: str | None = None
    try:
        root = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise BoxRefused("The workspace folder does not exist on the machine of this worker.") from error
    try:
        for path in (*PROTECTED_NAMES, *_nested_git(root)):
            try:
                fd = _open_beneath(root, path)
            except OSError as error:
                if error.errno == errno.ENOENT:
                    absent.append(path)
                elif error.errno == errno.ELOOP:
                    links.append(path)
                else:
                    raise
                continue
            try:
                if stat.S_ISLNK(os.fstat(fd).st_mode):
                    links.append(path)
                    continue
                read_only.append(path)
                if path == ".git":
                    git_directory = _pointed_to(root, fd)
            finally:
                os.close(fd)
    finally:
        os.close(root)
    if any(path.rpartition("/")[2] == ".git" for path in links):
        raise BoxRefused("A `.git` in the workspace is a symlink: no sandbox is started on it.")
    return Protection(tuple(read_only), tuple(absent), tuple(links), git_directory)
