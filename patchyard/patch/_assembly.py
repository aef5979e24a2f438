"""Operations of a patch under construction, and how far each has arrived."""

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


class Assembly:
    """Collects what the parser has understood. One operation is open at a time."""

    def __init__(self) -> None:
        self.hunks: list[Hunk] = []
        self.progress: list[FileProgress] = []
        self.path = ""
        self._move_to: str | None = None
        self._line = 0
        self._content: list[str] = []
        self._chunks: list[Chunk] = []
        self._contexts: list[str] = []
        self.chunk_lines: list[str] = []
        self._chunk_line = 0

    def open(self, kind: Literal["add", "update", "delete"], path: str, line: int) -> None:
        """Begin an operation; a deletion is complete at once."""
        self.path, self._move_to, self._line = path, None, line
        self._content, self._chunks = [], []
        self.progress.append(FileProgress(kind, path, None, 0, 0, complete=False))
        if kind == "delete":
            self._close(DeleteFile(path, line))

    def move(self, target: str) -> None:
        """The open update moves its file."""
        self._move_to = target
        self.progress[-1] = self.progress[-1]._replace(move_to=target)

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
        self._grow(added, removed)

    def add_content(self, content: str, count: int) -> None:
        """`count` lines of the open new file, without prefixes."""
        self._content.append(content)
        self._grow(count, 0)

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
        self.progress[-1] = self.progress[-1]._replace(complete=True)

    def _grow(self, added: int, removed: int) -> None:
        kind, path, move_to, now_added, now_removed, _ = self.progress[-1]
        self.progress[-1] = FileProgress(kind, path, move_to, now_added + added, now_removed + removed, complete=False)
