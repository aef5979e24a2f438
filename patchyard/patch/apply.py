"""Verify a patch against files, all of it, before anything is written: files in, operations and their description out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, assert_never

from patchyard.protocol.items import FileUpdate

from .edits import locate
from .errors import EmptyPatchError, FileProblem, PathRefused, clip
from .hunks import AddFile, DeleteFile, Hunk, Patch, UpdateFile
from .paths import Scope
from .text import TextLines, unified_diff


@dataclass(frozen=True, slots=True)
class FileText:
    """A file as the reader found it."""

    data: bytes
    mode: int | None = None
    """Permission bits, kept by updates and moves."""
    target: str | None = None
    """Key of the file behind a symbolic link; None when the path is no link."""
    kind: Literal["file", "folder", "special", "dangling_link", "outside_link"] = "file"
    """`outside_link`: leads out of the folders that may be written; such a link can be removed, nothing else."""


ReadFile = Callable[[str], FileText | None]
"""Gives the file of a key (`Scope.resolve`), None when there is none. May raise PathRefused when a parent folder leads outside,
and FileProblem when the file can not be read or a parent is no folder."""


@dataclass(frozen=True, slots=True)
class WriteFile:
    """Give a file this content, creating it and its folders where needed."""

    key: str
    """See `Scope.resolve`; the target where the patch named a symbolic link."""
    data: bytes
    mode: int | None
    """Permission bits to set; None: those of a new file."""


@dataclass(frozen=True, slots=True)
class RemoveFile:
    """Remove a file, or a symbolic link itself."""

    key: str


Operation = WriteFile | RemoveFile


class Step(NamedTuple):
    """One operation of the patch, as the summary tells it."""

    letter: Literal["A", "M", "D"]
    path: str
    """As written in the patch; of a moved file the new one."""
    update: FileUpdate


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Everything that a patch changes. Nothing of it has happened yet."""

    operations: tuple[Operation, ...]
    """Net effect, one per file; removals come first, so that a file may become a folder."""
    steps: tuple[Step, ...]
    """In the order of the patch."""
    notes: tuple[str, ...] = ()
    """What the author should know although the patch fits."""

    def summary(self) -> str:
        """`Success. …` and the `A`, `M`, `D` lines: grouped in that order, each group in the order of the patch."""
        lines = [f"{letter} {step.path}\n" for letter in "AMD" for step in self.steps if step.letter == letter]
        return "Success. Updated the following files:\n" + "".join(lines)

    def report(self) -> str:
        """The summary, then the notes: what the command prints and the model is shown."""
        return self.summary() + "".join(f"Note: {note}\n" for note in self.notes)

    def file_updates(self) -> list[FileUpdate]:
        """One entry per operation of the patch, in order. Paths are relative to the workspace."""
        return [step.update for step in self.steps]


def plan(patch: Patch, read: ReadFile, *, scope: Scope | None = None) -> ChangeSet:
    """What the patch does to the files that `read` shows. Raises PatchError, also for the last operation: nothing is half done.

    Operations on one path are applied in order, each to the result of the one before.
    """
    if not patch.hunks:
        raise EmptyPatchError("The patch changes no file. Add at least one operation.")
    planner = _Planner(read, scope or Scope())
    for hunk in patch.hunks:
        planner.take(hunk)
    return ChangeSet(planner.operations(), tuple(planner.steps), tuple(planner.notes))


class _Planner:
    """Files as they will be. `_now` holds what differs from what `read` shows; None is a removed file."""

    def __init__(self, read: ReadFile, scope: Scope) -> None:
        self._read = read
        self._scope = scope
        self._before: dict[str, FileText | None] = {}
        self._now: dict[str, FileText | None] = {}
        self.steps: list[Step] = []
        self.notes: list[str] = []

    def take(self, hunk: Hunk) -> None:
        match hunk:
            case AddFile():
                self._add(hunk)
            case DeleteFile():
                self._delete(hunk)
            case UpdateFile():
                self._update(hunk)
            case _:
                assert_never(hunk)

    def operations(self) -> tuple[Operation, ...]:
        """Net effect. A file that ends as it began is left alone."""
        removed: list[Operation] = []
        written: list[Operation] = []
        for key, now in self._now.items():
            before = self._before.get(key)
            if now is None:
                if before is not None:
                    removed.append(RemoveFile(key))
            elif before is None or before.kind != "file" or (before.data, before.mode) != (now.data, now.mode):
                written.append(WriteFile(key, now.data, now.mode))
        return (*removed, *written)

    # --- operations of the patch --------------------------------------------------------------

    def _add(self, hunk: AddFile) -> None:
        key = self._scope.resolve(hunk.path)
        self._write(hunk.path, key, hunk.content.encode(), mode=None)
        self._step("A", hunk.path, FileUpdate(path=key, kind="add", diff=hunk.content))

    def _delete(self, hunk: DeleteFile) -> None:
        key = self._scope.resolve(hunk.path)
        found = self._look(key)
        if found is None:
            raise self._missing(hunk.path, hunk.line)
        if found.kind in ("folder", "special"):
            raise _not_a_file(hunk.path, hunk.line)
        self._now[key] = None
        content = found.data.decode(errors="replace") if found.kind == "file" else ""
        self._step("D", hunk.path, FileUpdate(path=key, kind="delete", diff=content))

    def _update(self, hunk: UpdateFile) -> None:
        key = self._scope.resolve(hunk.path)
        found = self._existing(hunk.path, key, hunk.line)
        text = TextLines(_decode(found.data, hunk))
        edits, notes = locate(hunk, text)
        data = text.rewrite(edits).encode()
        self.notes += notes
        diff = unified_diff(text, edits)
        if hunk.move_to is None:
            self._now[found.target or key] = FileText(data, found.mode)
            self._step("M", hunk.path, FileUpdate(path=key, kind="update", diff=diff))
            return
        new_key = self._scope.resolve(hunk.move_to)
        written = self._write(hunk.move_to, new_key, data, mode=found.mode, moved=True)
        if written != (found.target or key):
            self._now[key] = None
        self._step("M", hunk.move_to, FileUpdate(path=key, kind="update", move_path=new_key, diff=diff))

    def _write(self, path: str, key: str, data: bytes, *, mode: int | None, moved: bool = False) -> str:
        """Put a whole file in its place; returns the key that holds it. A replaced file keeps its mode, a moved one its own."""
        found = self._look(key)
        if found is not None:
            self._refuse_unusable(path, found)
            if found.kind == "file" and not moved:
                mode = found.mode
        else:
            self._refuse_file_as_folder(path, key)
        place = (found.target if found is not None else None) or key
        self._now[place] = FileText(data, mode)
        return place

    # --- files as they will be ----------------------------------------------------------------

    def _look(self, key: str) -> FileText | None:
        if key in self._now:
            return self._now[key]
        if key not in self._before:
            self._before[key] = None if self._parent_will_be_gone(key) else self._read(key)
        found = self._before[key]
        if found is None or found.target is None or found.kind != "file":
            return found
        if found.target not in self._before:
            self._before[found.target] = FileText(found.data, found.mode)
        if found.target not in self._now:
            return found
        behind = self._now[found.target]
        if behind is None:
            return FileText(b"", target=found.target, kind="dangling_link")
        return FileText(behind.data, behind.mode, found.target)

    def _existing(self, path: str, key: str, line: int) -> FileText:
        found = self._look(key)
        if found is None or found.kind == "dangling_link":
            raise self._missing(path, line)
        self._refuse_unusable(path, found)
        return found

    def _refuse_unusable(self, path: str, found: FileText) -> None:
        if found.kind in ("folder", "special"):
            raise _not_a_file(path, None)
        if found.kind == "outside_link":
            raise PathRefused(
                f"`{clip(path)}` is a symbolic link that leads outside of the folders that may be written. "
                "Change a file inside the workspace. Nothing was changed.",
                path=path,
            )

    def _parents(self, key: str) -> list[str]:
        parts = key.split("/")
        return ["/".join(parts[:i]) for i in range(1, len(parts))]

    def _parent_will_be_gone(self, key: str) -> bool:
        """Whether a parent was a file that an earlier operation removed: nothing can be there yet."""
        return any(parent in self._now and self._now[parent] is None for parent in self._parents(key))

    def _refuse_file_as_folder(self, path: str, key: str) -> None:
        for parent in self._parents(key):
            if self._now.get(parent) is not None:
                raise FileProblem(f"{clip(path)}: `{clip(parent)}` is a file, not a folder. Choose another path.", path=path)
        below = f"{key}/"
        if any(other.startswith(below) for other in self._now):  # a removed file leaves its folder
            raise _not_a_file(path, None)

    def _missing(self, path: str, line: int) -> FileProblem:
        return FileProblem(
            f"{clip(path)}: there is no such file. Check the path (it is relative to the current folder), or create the file "
            "with `*** Add File:`. Nothing was changed.",
            path=path,
            line=line,
        )

    def _step(self, letter: Literal["A", "M", "D"], path: str, update: FileUpdate) -> None:
        self.steps.append(Step(letter, path, update))


def _not_a_file(path: str, line: int | None) -> FileProblem:
    return FileProblem(f"{clip(path)}: this is a folder or a special file. A patch changes files only.", path=path, line=line)


def _decode(data: bytes, hunk: UpdateFile) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FileProblem(
            f"{clip(hunk.path)}: the file is not UTF-8 text (byte {error.start}), so it can not be patched line by line. "
            "Rewrite it with a command, or replace it with `*** Add File:`.",
            path=hunk.path,
            line=hunk.line,
        ) from None
