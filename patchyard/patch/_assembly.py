"""A patch under construction: where in its grammar it is, its operations, and how far each has arrived."""

from enum import IntEnum, auto
from typing import Literal, NamedTuple

from .hunks import AddFile, Chunk, DeleteFile, Hunk, UpdateFile


class FileProgress(NamedTuple):
    """How far one operation has arrived."""

    kind: Literal["add", "update", "delete"]
    path: str
    move_to: str | None
    added: int
    """Lines so far."""
    removed: int
    complete: bool


class State(IntEnum):
    """Where in the grammar the next line stands."""

    # in the order of a patch: the states from UPDATE to CHUNK are those in which lines of a hunk may come
    BEGIN = auto()
    START = auto()
    """After the first line."""
    HEADER = auto()
    ADD = auto()
    UPDATE = auto()
    """After the header of an update: a move may follow."""
    FIRST_CHUNK = auto()
    """The first chunk may do without `@@`."""
    CHUNK_OPEN = auto()
    """After `@@`: another one or a line of the hunk must follow."""
    CHUNK = auto()
    CHUNK_CLOSED = auto()
    """After `*** End of File`."""
    ENDED = auto()


class Assembly:
    """Collects what the parser has understood. One operation is open at a time."""

    def __init__(self) -> None:
        self.hunks: list[Hunk] = []
        self.path = ""
        self.chunk_lines: list[str] = []
        self._closed: list[FileProgress] = []
        self._kind: Literal["add", "update", "delete"] | None = None
        """Of the open operation."""
        self._move_to: str | None = None
        self._line = 0
        self._added = self._removed = 0
        self._content: list[str] = []
        self._chunks: list[Chunk] = []
        self._contexts: list[str] = []
        self._chunk_line = 0

    def progress(self, first: int = 0) -> list[FileProgress]:
        """All operations from number `first` on, the open one last."""
        known = self._closed[first:]
        if self._kind is not None:
            known.append(FileProgress(self._kind, self.path, self._move_to, self._added, self._removed, complete=False))
        return known

    def closed_count(self) -> int:
        """Number of complete operations."""
        return len(self._closed)

    def open(self, kind: Literal["add", "update", "delete"], path: str, line: int) -> None:
        """Begin an operation; a deletion is complete at once."""
        self._kind, self.path, self._move_to, self._line = kind, path, None, line
        self._added = self._removed = 0
        self._content, self._chunks = [], []
        if kind == "delete":
            self._close(DeleteFile(path, line))

    def move(self, target: str) -> None:
        """The open update moves its file."""
        self._move_to = target

    def open_chunk(self, line: int) -> None:
        """Begin a chunk of the open update."""
        self._chunk_line = line
        self._contexts, self.chunk_lines = [], []

    def add_context(self, text: str) -> None:
        """An `@@` line with text."""
        self._contexts.append(text)

    def add_chunk_lines(self, lines: list[str], *, added: int, removed: int) -> None:
        """Lines of the open chunk, with prefixes; `added` and `removed` count them."""
        self.chunk_lines += lines
        self._added += added
        self._removed += removed

    def add_content(self, content: str, count: int) -> None:
        """`count` lines of the open new file, without prefixes."""
        self._content.append(content)
        self._added += count

    def close_chunk(self, *, at_end: bool) -> None:
        """The open chunk is complete."""
        self._chunks.append(Chunk(tuple(self._contexts), tuple(self.chunk_lines), at_end, self._chunk_line))

    def close_update(self) -> None:
        """The open update is complete."""
        self._close(UpdateFile(self.path, self._move_to, tuple(self._chunks), self._line))

    def close_add(self) -> None:
        """The open new file is complete."""
        self._close(AddFile(self.path, "".join(self._content), self._line))

    def _close(self, hunk: Hunk) -> None:
        self.hunks.append(hunk)
        complete = self.progress(self.closed_count())[0]
        self._closed.append(complete._replace(complete=True))
        self._kind = None
