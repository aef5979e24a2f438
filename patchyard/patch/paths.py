"""Which file a path of a patch means, and which paths a patch touches."""

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, assert_never

from .errors import PathRefused, clip
from .hunks import AddFile, DeleteFile, Patch, UpdateFile


@dataclass(frozen=True)
class Scope:
    """Where a patch is applied and what it may reach. Purely textual: symbolic links are the reader's business."""

    root: str | None = None
    """Absolute path of the workspace as the patch's author sees it; None: absolute paths are refused."""
    cwd: str = ""
    """Folder that relative paths start from, relative to the root."""
    extra: tuple[str, ...] = ()
    """More absolute folders that may be written, e.g. `/tmp`."""

    def inside(self, folder: str) -> "Scope":
        """The scope after `cd folder`. Raises PathRefused when that leaves the workspace."""
        key = self.resolve(folder, folder_allowed=True)
        if key.startswith("/"):
            raise PathRefused(f"{clip(folder)}: use a folder inside the workspace to start from.", path=folder)
        return Scope(self.root, key, self.extra)

    def resolve(self, path: str, *, folder_allowed: bool = False) -> str:
        """The file's key: relative to the root when inside it, absolute when in an extra folder. Raises PathRefused."""
        if "\0" in path:
            raise PathRefused("A path can not hold a NUL character. Give the file's path.", path=path)
        if path.startswith("/"):
            key = self._from_absolute(posixpath.normpath(path), path)
        else:
            key = posixpath.normpath(posixpath.join(self.cwd, path))
            if key == ".." or key.startswith("../"):
                key = self._above_root(key, path)
        if key == "." and not folder_allowed:
            raise PathRefused(f"`{clip(path)}` is the workspace folder itself. Give the path of a file in it.", path=path)
        return "" if key == "." else key

    def _above_root(self, key: str, path: str) -> str:
        if self.root is None:
            raise _outside(path)
        return self._from_absolute(posixpath.normpath(posixpath.join(self.root, key)), path)

    def _from_absolute(self, absolute: str, path: str) -> str:
        absolute = "/" + absolute.lstrip("/")
        if self.root is not None and _is_inside(absolute, self.root):
            return posixpath.relpath(absolute, self.root)
        if any(_is_inside(absolute, folder) and absolute != folder for folder in self.extra):
            return absolute
        raise _outside(path)


def _is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _outside(path: str) -> PathRefused:
    return PathRefused(
        f"`{clip(path)}` leads outside of the folders that may be written. Use a path inside the workspace, relative to the "
        "current folder. Nothing was changed.",
        path=path,
    )


class TouchedPath(NamedTuple):
    """A file that a patch would write or remove."""

    path: str
    """As written."""
    key: str
    """See `Scope.resolve`."""
    kind: Literal["write", "delete"]


def touched_paths(patch: Patch, scope: Scope | None = None) -> tuple[TouchedPath, ...]:
    """Every path the patch touches, in order; a move counts as delete and write. Raises PathRefused."""
    scope = scope or Scope()
    return tuple(TouchedPath(path, scope.resolve(path), kind) for path, kind in _touches(patch))


def _touches(patch: Patch) -> Iterable[tuple[str, Literal["write", "delete"]]]:
    for hunk in patch.hunks:
        match hunk:
            case AddFile():
                yield hunk.path, "write"
            case DeleteFile():
                yield hunk.path, "delete"
            case UpdateFile():
                if hunk.move_to is not None:
                    yield hunk.path, "delete"
                yield hunk.move_to or hunk.path, "write"
            case _:
                assert_never(hunk)
