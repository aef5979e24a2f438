"""A text file as lines that remember their exact bytes: rewriting, and unified diffs straight from the edits."""

from collections.abc import Sequence
from typing import NamedTuple

_CONTEXT = 3
"""Unchanged lines around a change, as `diff -u` shows them."""


class Edit(NamedTuple):
    """Lines `start` to `end` (exclusive, 0-based) of a file become `added`."""

    start: int
    end: int
    added: tuple[str, ...]
    """Without line ends."""
    anchor: int
    """First line of the block it belongs to: orders insertions at one place."""


class TextLines:
    """Lines of a file. A line ends with LF or CRLF; a lone CR is part of its line."""

    def __init__(self, text: str) -> None:
        self.raw = text.split("\n")
        """Without the LF, with the CR of a CRLF."""
        self.final_newline = self.raw[-1] == ""
        if self.final_newline:
            self.raw.pop()
        crlf = text.count("\r\n")
        others = text.count("\n") - crlf
        first_is_crlf = crlf > 0 and text[text.index("\n") - 1 :].startswith("\r\n")
        self.newline = "\r\n" if crlf > others or (crlf == others and first_is_crlf) else "\n"
        """The one that most lines have; the first one's when there is a tie."""
        self.lines: Sequence[str] = self.raw
        """Without line ends: what a patch is compared with."""
        if crlf:
            self.lines = [line[:-1] if line.endswith("\r") else line for line in self.raw]
            if not self.final_newline:
                self.lines[-1] = self.raw[-1]

    def rewrite(self, edits: Sequence[Edit]) -> str:
        """The text after the edits, which are sorted and do not overlap. Lines outside of them keep their bytes."""
        carriage_return = self.newline[:-1]
        out: list[str] = []
        position = 0
        for edit in edits:
            out += self.raw[position : edit.start]
            if edit.added and edit.start == len(self.raw) and position < edit.start and not self.final_newline:
                out[-1] += carriage_return
            out += [line + carriage_return for line in edit.added]
            position = edit.end
        out += self.raw[position:]
        if not out:
            return ""
        last_is_untouched = position < len(self.raw)
        return "\n".join(out) + ("\n" if self.final_newline or not last_is_untouched else "")


def unified_diff(text: TextLines, edits: Sequence[Edit]) -> str:
    """The hunks (`@@ -a,b +c,d @@` …) of the edits, without file headers. Lines keep their bytes."""
    changes = _changes(text, edits)
    out: list[str] = []
    shift = 0
    for group in _grouped(changes):
        start = max(group[0].start - _CONTEXT, 0)
        end = min(group[-1].end + _CONTEXT, len(text.raw))
        body: list[str] = []
        position, added = start, 0
        for edit in group:
            body += _shown(text, position, edit.start, " ")
            body += _shown(text, edit.start, edit.end, "-")
            body += [f"+{line}\n" for line in edit.added]
            added += len(edit.added) - (edit.end - edit.start)
            position = edit.end
        body += _shown(text, position, end, " ")
        out.append(f"@@ -{_range(start, end - start)} +{_range(start + shift, end - start + added)} @@\n")
        out += body
        shift += added
    return "".join(out)


def _range(start: int, count: int) -> str:
    first = start + 1 if count else start
    return str(first) if count == 1 else f"{first},{count}"


def _shown(text: TextLines, start: int, end: int, prefix: str) -> list[str]:
    shown = [f"{prefix}{line}\n" for line in text.raw[start:end]]
    if shown and end == len(text.raw) and not text.final_newline:
        shown.append("\\ No newline at end of file\n")
    return shown


def _changes(text: TextLines, edits: Sequence[Edit]) -> list[Edit]:
    """The edits with raw lines, cut to what really differs."""
    carriage_return = text.newline[:-1]
    last = len(text.raw) - 1
    changes: list[Edit] = []
    for edit in edits:
        start, end, added = edit.start, edit.end, [line + carriage_return for line in edit.added]
        if added and start == last + 1 and not text.final_newline and last >= 0 and not (changes and changes[-1].end > last):
            # the last line gets a line end because something follows it
            start, added = last, [text.raw[last] + carriage_return, *added]
        else:
            start, end, added = _trimmed(text, start, end, added)
        if start < end or added:
            changes.append(Edit(start, end, tuple(added), start))
    return changes


def _trimmed(text: TextLines, start: int, end: int, added: list[str]) -> tuple[int, int, list[str]]:
    """Without equal lines at both ends. A last line without line end equals nothing: the added one has one."""
    stop = min(end, len(text.raw) - (not text.final_newline))
    head = 0
    while start + head < stop and head < len(added) and text.raw[start + head] == added[head]:
        head += 1
    tail = 0
    common = min(end - start, len(added)) - head if stop == end else 0
    while tail < common and text.raw[end - tail - 1] == added[-tail - 1]:
        tail += 1
    return start + head, end - tail, added[head : len(added) - tail]


def _grouped(changes: Sequence[Edit]) -> list[list[Edit]]:
    groups: list[list[Edit]] = []
    for change in changes:
        if groups and change.start - groups[-1][-1].end <= 2 * _CONTEXT:
            groups[-1].append(change)
        else:
            groups.append([change])
    return groups
