"""What a verified patch will do: the file operations, and how they are told to people and programs."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from patchyard.protocol.items import FileUpdate


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
