"""A slow, plain model of the recorded apply_patch, with one switch per deliberate difference of Patchyard.

Without switches it must answer like the real program, with all of them like Patchyard. The switches that change the answer for
an example are the reasons why the two differ on it; whatever they do not explain is an error in one of the three.
"""

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from patchyard.patch import AddFile, Chunk, DeleteFile, Patch, PatchSyntaxError, UpdateFile, parse


class Case(StrEnum):
    """The deliberate differences."""

    ALL_OR_NOTHING = "all_or_nothing"
    CRLF_KEPT = "crlf_kept"
    CONTEXT_KEPT = "context_kept"
    MOVE_ONTO_ITSELF = "move_onto_itself"
    MODE_KEPT = "mode_kept"
    AMBIGUOUS_REFUSED = "ambiguous_refused"
    NESTED_CONTEXT = "nested_context"
    ADDITION_BELOW_CONTEXT = "addition_below_context"
    BLANK_END_KEPT = "blank_end_kept"
    FINAL_NEWLINE_KEPT = "final_newline_kept"
    PATH_REFUSED = "path_refused"
    OVERLAP_REFUSED = "overlap_refused"


ALL = frozenset(Case)
RECORDED: frozenset[Case] = frozenset()


class Entry(NamedTuple):
    """A file of an example."""

    data: bytes
    executable: bool = False


Files = dict[str, Entry]


@dataclass(frozen=True)
class Answer:
    """What can be seen after a run."""

    ok: bool
    summary: tuple[str, ...]
    files: Files


class Refused(Exception):
    """The model refuses the patch."""


_SPACE = (
    "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_PLAIN = {
    **{ord(c): "-" for c in "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"},
    **{ord(c): "'" for c in "\u2018\u2019\u201a\u201b"},
    **{ord(c): '"' for c in "\u201c\u201d\u201e\u201f"},
    **{ord(c): " " for c in "\xa0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"},
}
_PASSES: tuple[Callable[[str], str], ...] = (
    lambda line: line,
    lambda line: line.rstrip(_SPACE),
    lambda line: line.strip(_SPACE),
    lambda line: line.strip(_SPACE).translate(_PLAIN),
)
_CONTEXTS_IN_A_ROW = re.compile(r"^@@(?:[ \t]*|[ ].*)\r*\n@@(?:[ \t]*|[ ].*)\r*$", re.MULTILINE)


class _Found(NamedTuple):
    first: int
    tolerant: bool
    places: int


class _Run(NamedTuple):
    """Lines `start` to `end` become `new`; each new line is its text and, when kept, its old index."""

    start: int
    end: int
    new: list[tuple[str, int | None]]
    anchor: int


def answer(text: str, files: Files, cases: frozenset[Case]) -> Answer:
    """What the tool answers when it differs from the recorded one in `cases`."""
    try:
        if Case.NESTED_CONTEXT not in cases and _CONTEXTS_IN_A_ROW.search(text):
            raise Refused
        patch = parse(text)
    except (PatchSyntaxError, Refused):
        return Answer(False, (), files)
    tool = _Tool(dict(files), cases)
    try:
        tool.apply(patch)
    except Refused:
        return Answer(False, (), files if Case.ALL_OR_NOTHING in cases else tool.files)
    summary = tuple(line for letter in "AMD" for line in tool.summary if line[0] == letter)
    return Answer(True, summary, tool.files)


class _Tool:
    def __init__(self, files: Files, cases: frozenset[Case]) -> None:
        self.files = files
        self.summary: list[str] = []
        self._cases = cases
        self._folders = {posixpath.dirname(path) for path in files} - {""}

    def apply(self, patch: Patch) -> None:
        for hunk in patch.hunks:
            match hunk:
                case AddFile(path, content):
                    self._write(path, content.encode(), executable=False)
                    self.summary.append(f"A {path}")
                case DeleteFile(path):
                    if self.files.pop(self._key(path), None) is None:
                        raise Refused
                    self.summary.append(f"D {path}")
                case UpdateFile():
                    self._update(hunk)
                    self.summary.append(f"M {hunk.move_to or hunk.path}")

    def _key(self, path: str) -> str:
        key = posixpath.normpath(path)
        if Case.PATH_REFUSED in self._cases and key.startswith(("..", "/")):
            raise Refused
        return key

    def _write(self, path: str, data: bytes, *, executable: bool, moved: bool = False) -> None:
        key = self._key(path)
        folder = posixpath.dirname(key)
        if key in self._folders or folder in self.files:
            raise Refused
        if folder:
            self._folders.add(folder)
        if not moved or Case.MODE_KEPT not in self._cases:
            executable = self.files[key].executable if key in self.files else False
        self.files[key] = Entry(data, executable)

    def _update(self, hunk: UpdateFile) -> None:
        key = self._key(hunk.path)
        if key not in self.files:
            raise Refused
        entry = self.files[key]
        try:
            text = entry.data.decode()
        except UnicodeDecodeError:
            raise Refused from None
        data = _Update(text, self._cases).run(hunk.chunks).encode()
        if hunk.move_to is None:
            self.files[key] = Entry(data, entry.executable)
            return
        self._write(hunk.move_to, data, executable=entry.executable, moved=True)
        if self._key(hunk.move_to) != key or Case.MOVE_ONTO_ITSELF not in self._cases:
            del self.files[key]


class _Update:
    """One update of one file."""

    def __init__(self, text: str, cases: frozenset[Case]) -> None:
        self._cases = cases
        self._raw = text.split("\n")
        self._ends = self._raw[-1] == ""
        if self._ends:
            self._raw.pop()
        crlf = [line.endswith("\r") for line in (self._raw if self._ends else self._raw[:-1])]
        more = 2 * sum(crlf) > len(crlf) or (2 * sum(crlf) == len(crlf) > 0 and crlf[0])
        self._end = "\r" if Case.CRLF_KEPT in cases and more else ""
        self._seen = self._raw
        if Case.CRLF_KEPT in cases:
            last = len(self._raw) - 1
            self._seen = [s[:-1] if s.endswith("\r") and (self._ends or i < last) else s for i, s in enumerate(self._raw)]

    def run(self, chunks: Sequence[Chunk]) -> str:
        cursor = 0
        runs: list[_Run] = []
        for chunk in chunks:
            doubt = False
            for context in chunk.contexts:
                found = self._find([context], cursor, at_end=False)
                if found is None:
                    raise Refused
                doubt = found.places > 1 and (doubt or found.tolerant)
                cursor = found.first + 1
            old, new = self._sides(chunk)
            if not old:
                runs.append(self._addition(chunk, cursor, new, doubt=doubt))
                continue
            found = self._find(old, cursor, at_end=chunk.at_end)
            if found is None and old[-1] == "":
                old = old[:-1]
                if (
                    new
                    and new[-1][0] == ""
                    and not (Case.CONTEXT_KEPT in self._cases and new[-1][1] is not None and new[-1][1] < len(old))
                ):
                    new = new[:-1]
                found = self._find(old, cursor, at_end=chunk.at_end)
            if found is None:
                raise Refused
            self._refuse(doubt=found.places > 1 and (doubt or found.tolerant))
            cursor = found.first + len(old)
            runs.append(_Run(found.first, cursor, self._placed(new, found.first, len(old)), found.first))
        return self._text(runs)

    def _addition(self, chunk: Chunk, cursor: int, new: list[tuple[str, int | None]], *, doubt: bool) -> _Run:
        self._refuse(doubt=doubt)
        count = len(self._raw)
        if Case.ADDITION_BELOW_CONTEXT in self._cases and chunk.contexts and not chunk.at_end:
            place = cursor
        elif Case.BLANK_END_KEPT not in self._cases and self._raw and self._raw[-1] == "":
            place = count - 1
        else:
            place = count
        return _Run(place, place, self._placed(new, 0, 0), place)

    def _refuse(self, *, doubt: bool) -> None:
        if doubt and Case.AMBIGUOUS_REFUSED in self._cases:
            raise Refused

    def _sides(self, chunk: Chunk) -> tuple[list[str], list[tuple[str, int | None]]]:
        old: list[str] = []
        new: list[tuple[str, int | None]] = []
        for line in chunk.lines:
            if line[0] != "-":
                new.append((line[1:], len(old) if line[0] == " " else None))
            if line[0] != "+":
                old.append(line[1:])
        return old, new

    def _placed(self, new: list[tuple[str, int | None]], first: int, count: int) -> list[tuple[str, int | None]]:
        placed: list[tuple[str, int | None]] = []
        for text, offset in new:
            index = first + offset if offset is not None and offset < count else None
            kept = index is not None and Case.CONTEXT_KEPT in self._cases
            placed.append((self._raw[index] if kept and index is not None else text + self._end, index))
        return placed

    def _find(self, block: list[str], start: int, *, at_end: bool) -> _Found | None:
        if not block:
            return _Found(start, tolerant=False, places=1)
        last = len(self._seen) - len(block)
        starts = [last] if at_end and last >= 0 else range(start, last + 1)
        for number, shape in enumerate(_PASSES):
            wanted = [shape(line) for line in block]
            hits = [i for i in starts if [shape(line) for line in self._seen[i : i + len(block)]] == wanted]
            if hits:
                return _Found(hits[0], number > 0, len(hits))
        return None

    def _text(self, runs: list[_Run]) -> str:
        out: list[tuple[str, int | None]] = [(line, i) for i, line in enumerate(self._raw)]
        if Case.OVERLAP_REFUSED in self._cases:
            runs = self._changed_only(runs)
        insertions_first = Case.OVERLAP_REFUSED in self._cases
        ordered = sorted(runs, key=lambda run: (run.start, insertions_first and run.end > run.start, run.anchor))
        for run in ordered[::-1]:
            out[run.start : run.end] = run.new
        if not out:
            return ""
        last_index = len(self._raw) - 1
        for i, (line, index) in enumerate(out[:-1]):
            if index == last_index and not self._ends and Case.CONTEXT_KEPT in self._cases and not line.endswith("\r"):
                out[i] = (line + self._end, index)
        text = "\n".join(line for line, _ in out)
        if Case.BLANK_END_KEPT not in self._cases and out[-1][0] == "":
            return text
        if Case.FINAL_NEWLINE_KEPT in self._cases and out[-1][1] == last_index and not self._ends:
            return text
        return text + "\n"

    def _changed_only(self, runs: list[_Run]) -> list[_Run]:
        """The runs without their context lines, so that only real changes can overlap."""
        changed: list[_Run] = []
        for run in runs:
            start = position = run.start
            new: list[tuple[str, int | None]] = []
            kept = {index for _, index in run.new if index is not None}
            rest = list(run.new)
            while rest or position < run.end:
                if rest and rest[0][1] == position:
                    if new or position > start:
                        changed.append(_Run(start, position, new, run.anchor))
                    if rest[0][0] != self._raw[position]:
                        changed.append(_Run(position, position + 1, [rest[0]], run.anchor))
                    rest.pop(0)
                    position += 1
                    start, new = position, []
                elif rest and rest[0][1] is None:
                    new.append(rest.pop(0))
                elif position not in kept:
                    position += 1
            if new or position > start:
                changed.append(_Run(start, position, new, run.anchor))
        changed.sort(key=lambda run: (run.start, run.end > run.start, run.anchor))
        for before, after in pairwise(changed):
            if after.start < before.end:
                raise Refused
        return changed
