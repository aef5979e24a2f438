"""What a patch says, before any file is looked at."""

from dataclasses import dataclass
from typing import NamedTuple

BEGIN = "*** Begin Patch"
END = "*** End Patch"
ADD = "*** Add File: "
DELETE = "*** Delete File: "
UPDATE = "*** Update File: "
MOVE = "*** Move to: "
END_OF_FILE = "*** End of File"
ENVIRONMENT = "*** Environment ID:"

WHITESPACE = (
    "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""The Unicode property White_Space. `str.strip()` would also take the separators U+001C to U+001F, which the format keeps."""


class Chunk(NamedTuple):
    """One change inside an updated file."""

    contexts: tuple[str, ...]
    """Texts of the `@@` lines before it, outermost first; bare `@@` lines are left out."""
    lines: tuple[str, ...]
    """Each with its prefix: ` ` context, `-` removed, `+` added."""
    at_end: bool
    """Closed by `*** End of File`: must match the very end."""
    line: int
    """Line of the patch where it starts."""

    @property
    def old(self) -> list[str]:
        """The lines that must be in the file."""
        return [line[1:] for line in self.lines if line[0] != "+"]


@dataclass(frozen=True, slots=True)
class AddFile:
    """Creates a file, or replaces one."""

    path: str
    content: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """Removes a file."""

    path: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class UpdateFile:
    """Changes a file, and moves it when `move_to` is given."""

    path: str
    move_to: str | None
    chunks: tuple[Chunk, ...]
    line: int = 0


Hunk = AddFile | DeleteFile | UpdateFile


@dataclass(frozen=True, slots=True)
class Patch:
    """A parsed patch: operations in the order in which they are applied. Paths are as written."""

    hunks: tuple[Hunk, ...]
    environment_id: str | None = None
    """Named by the patch; accepted for compatibility, without effect."""
