"""The chunks of one update, located in a file: from hunks to line edits."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from .errors import AmbiguousMatch, ContextNotFound, LinesNotFound, OverlappingHunks, clip, quote
from .hunks import Chunk, UpdateFile
from .seek import MATCH_LIMIT, LineFinder, Match, Pass, nearest_lines
from .text import Edit, TextLines

_SHOWN_PLACES = 10
"""Line numbers listed in a message."""


class LocatedEdits(NamedTuple):
    """What an update does to a file."""

    edits: tuple[Edit, ...]
    """Sorted, without overlap."""
    notes: tuple[str, ...]
    """What the author should know although the patch was applied."""


class _Place(NamedTuple):
    """A chunk and where its lines stand."""

    lines: Sequence[str]
    first: int
    end: int


def locate(hunk: UpdateFile, text: TextLines) -> LocatedEdits:
    """Find every chunk, in file order, each after the one before it. Raises HunkError."""
    wanted = [line for chunk in hunk.chunks for line in (*chunk.contexts, *chunk.old)]
    return _Locator(hunk.path, text, LineFinder(text.lines, wanted)).run(hunk.chunks)


class _Locator:
    def __init__(self, path: str, text: TextLines, finder: LineFinder) -> None:
        self._path = path
        self._text = text
        self._finder = finder
        self._cursor = 0
        self._doubt: Match | None = None
        """A tolerant match at several places, until something after it is found at only one."""
        self._edits: list[Edit] = []
        self._notes: list[str] = []

    def run(self, chunks: Sequence[Chunk]) -> LocatedEdits:
        for chunk in chunks:
            self._doubt = None
            for context in chunk.contexts:
                self._find_context(context, chunk)
            if any(line[0] != "+" for line in chunk.lines):
                self._find_block(chunk)
            else:
                self._insert(chunk)
        return LocatedEdits(self._in_order(), tuple(self._notes))

    def _find_context(self, context: str, chunk: Chunk) -> None:
        match = self._finder.find([context], self._cursor)
        if match is None:
            raise ContextNotFound(
                f"{self._path}: the line of `@@ {clip(context)}`{self._searched()} was not found. "
                f"Copy a whole line of the file after `@@`, or leave the text out.{self._nearest([context])}",
                path=self._path,
                line=chunk.line,
            )
        self._consider(match)
        self._cursor = match.first + 1

    def _consider(self, match: Match) -> None:
        if len(match.places) == 1:
            self._doubt = None
        elif match.how is not Pass.EXACT:
            self._doubt = match

    def _insert(self, chunk: Chunk) -> None:
        """Only added lines: directly below the `@@` context, else at the end of the file."""
        self._refuse_doubt(chunk)
        index = self._cursor if chunk.contexts and not chunk.at_end else len(self._text.lines)
        self._edits.append(Edit(index, index, tuple(line[1:] for line in chunk.lines), index))

    def _find_block(self, chunk: Chunk) -> None:
        place = self._place(chunk, chunk.lines)
        if place is None and chunk.old[-1] == "":
            place = self._place(chunk, _without_last_blank(chunk.lines))
        if place is None:
            where = " at the end of the file (`*** End of File`)" if chunk.at_end else self._searched()
            raise LinesNotFound(
                f"{self._path}: these lines were not found{where}:\n{quote(chunk.old)}\n"
                f"Read the file again and copy the lines as they are now.{self._nearest(chunk.old)}",
                path=self._path,
                line=chunk.line,
            )
        self._edits += _line_edits(place)
        self._cursor = place.end

    def _place(self, chunk: Chunk, lines: Sequence[str]) -> _Place | None:
        old = [line[1:] for line in lines if line[0] != "+"]
        match = self._finder.find(old, self._cursor, at_end=chunk.at_end)
        if match is None:
            return None
        self._consider(match)
        self._refuse_doubt(chunk)
        if len(match.places) > 1 and not chunk.contexts:
            self._notes.append(
                f"{self._path}: {_count(match)} places matched, first used (line {match.first + 1}). "
                "Name a line above the place after `@@` to choose another."
            )
        return _Place(lines, match.first, match.first + len(old))

    def _refuse_doubt(self, chunk: Chunk) -> None:
        if self._doubt is None:
            return
        places = self._doubt.places
        shown = ", ".join(str(index + 1) for index in places[:_SHOWN_PLACES]) + (", …" if len(places) > _SHOWN_PLACES else "")
        raise AmbiguousMatch(
            f"{self._path}: the hunk at line {chunk.line} of the patch fits only when blanks or punctuation are ignored, and "
            f"then {_count(self._doubt)} places (lines {shown}). Copy the lines exactly as they are in the file, or add more "
            "lines around them.",
            path=self._path,
            line=chunk.line,
        )

    def _searched(self) -> str:
        return f" below line {self._cursor}" if self._cursor else ""

    def _nearest(self, block: Sequence[str]) -> str:
        near = nearest_lines(self._text.lines, block, self._cursor)
        return f"\n{near}" if near else ""

    def _in_order(self) -> tuple[Edit, ...]:
        edits = sorted(self._edits, key=lambda edit: (edit.start, edit.end > edit.start, edit.anchor))
        for before, after in pairwise(edits):
            if after.start < before.end:
                raise OverlappingHunks(
                    f"{self._path}: two hunks change line {after.start + 1}. Put these changes into one hunk.",
                    path=self._path,
                )
        return tuple(edits)


def _count(match: Match) -> str:
    count = len(match.places)
    return f"over {MATCH_LIMIT}" if count >= MATCH_LIMIT else str(count)


def _line_edits(place: _Place) -> list[Edit]:
    """The changed runs of a block. Context lines are left out, so they keep the file's own text."""
    edits: list[Edit] = []
    added: list[str] = []
    start = position = place.first
    for line in (*place.lines, " "):
        match line[0]:
            case "+":
                added.append(line[1:])
            case "-":
                position += 1
            case _:
                if added or position > start:
                    edits.append(Edit(start, position, tuple(added), place.first))
                    added = []
                position += 1
                start = position
    return edits


def _without_last_blank(lines: Sequence[str]) -> list[str]:
    """The chunk without its last expected line, a blank one that the file does not have.

    A blank context line before more added lines becomes an added line; a blank last line of the new text goes with the expected
    one, also when removed lines stand below it in the patch.
    """
    kept = list(lines)
    last = max(i for i, line in enumerate(kept) if line[0] != "+")
    if kept[last][0] == "-":
        del kept[last]
    elif last == len(kept) - 1:
        del kept[last]
        return kept
    else:
        kept[last] = "+"
    stays = [i for i, line in enumerate(kept) if line[0] != "-"]
    if stays and kept[stays[-1]] == "+":
        del kept[stays[-1]]
    return kept
