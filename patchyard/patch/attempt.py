"""What a patch wanted to change, told without looking at a file: for people who watch when it could not be applied."""

from typing import assert_never

from patchyard.protocol.items import FileUpdate

from .errors import PathRefused
from .hunks import AddFile, Chunk, DeleteFile, Hunk, Patch, UpdateFile
from .paths import Scope


def attempted_updates(patch: Patch, scope: Scope | None = None) -> list[FileUpdate]:
    """One entry per operation, in order. Diffs are the patch's own lines; paths that may not be written stay as written."""
    scope = scope or Scope()
    return [_update(hunk, scope) for hunk in patch.hunks]


def _update(hunk: Hunk, scope: Scope) -> FileUpdate:
    path = _key(hunk.path, scope)
    match hunk:
        case AddFile():
            return FileUpdate(path=path, kind="add", diff=hunk.content)
        case DeleteFile():
            return FileUpdate(path=path, kind="delete", diff="")
        case UpdateFile():
            moved = None if hunk.move_to is None else _key(hunk.move_to, scope)
            return FileUpdate(path=path, kind="update", move_path=moved, diff="".join(_lines(chunk) for chunk in hunk.chunks))
        case _:
            assert_never(hunk)


def _lines(chunk: Chunk) -> str:
    heads = [f"@@ {context}" for context in chunk.contexts] or ["@@"]
    return "".join(f"{line}\n" for line in (*heads, *chunk.lines))


def _key(path: str, scope: Scope) -> str:
    try:
        return scope.resolve(path)
    except PathRefused:
        return path
