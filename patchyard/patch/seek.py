"""Where lines of a patch stand in a file, and which lines come nearest when they do not.

Four passes over the whole searched range, the strictest first: exact; without trailing blanks; without blanks on both sides;
and with typographic punctuation read as ASCII. For a pass every distinct line of the patch becomes one character and the file
a string of them, so that a block is found with `str.find`: linear, whatever repeats. Passes are indexed when first needed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from difflib import SequenceMatcher
from enum import IntEnum
from typing import NamedTuple

from .errors import PatchSyntaxError, clip
from .hunks import WHITESPACE

MATCH_LIMIT = 1000
"""Places counted for one block; a message needs no more."""
_CODE_LIMIT = 0x10FFFF
"""Distinct lines of one patch that can be told apart: the characters of a string."""

_SHOWN = 6
"""Lines of a candidate in the message."""
_COMPARED = 4000
"""Lines compared letter by letter; larger files are searched around the cursor only."""
_COMMON = 200
"""A line that occurs more often (a brace, a blank line) says nothing about a place."""
_LIKENESS = 0.6
"""Ratio under which two lines have nothing to do with each other."""

_PUNCTUATION = str.maketrans(
    {
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
        **dict.fromkeys("\u2018\u2019\u201a\u201b", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f", '"'),
        **dict.fromkeys("\xa0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " "),
    }
)


class Pass(IntEnum):
    """How lines are compared."""

    EXACT = 0
    RIGHT_TRIMMED = 1
    TRIMMED = 2
    PUNCTUATION = 3


class Match(NamedTuple):
    """A block was found."""

    first: int
    """Index of its first line in the file, 0-based."""
    how: Pass
    places: tuple[int, ...]
    """All indexes in the searched range, at most MATCH_LIMIT."""


def _exact(line: str) -> str:
    return line


def _right_trimmed(line: str) -> str:
    return line.rstrip(WHITESPACE)


def _trimmed(line: str) -> str:
    return line.strip(WHITESPACE)


def _plain(line: str) -> str:
    text = line.strip(WHITESPACE)
    return text if text.isascii() else text.translate(_PUNCTUATION)


_NORMALISE: dict[Pass, Callable[[str], str]] = {
    Pass.EXACT: _exact,
    Pass.RIGHT_TRIMMED: _right_trimmed,
    Pass.TRIMMED: _trimmed,
    Pass.PUNCTUATION: _plain,
}


class _Index:
    """One pass over one file."""

    def __init__(self, how: Pass, lines: Sequence[str], wanted: Iterable[str]) -> None:
        self._normalise = _NORMALISE[how]
        self._codes: dict[str, str] = {}
        for line in wanted:
            self._codes.setdefault(self._normalise(line), chr(len(self._codes) + 1))
        codes = self._codes
        normalised = lines if how is Pass.EXACT else map(self._normalise, lines)
        self.text = "".join([codes.get(line, "\0") for line in normalised])

    def encode(self, block: Sequence[str]) -> str:
        return "".join([self._codes[self._normalise(line)] for line in block])


class LineFinder:
    """Finds blocks of `wanted` lines in the lines of one file."""

    def __init__(self, lines: Sequence[str], wanted: Iterable[str]) -> None:
        self._lines = lines
        self._wanted = set(wanted)
        if len(self._wanted) >= _CODE_LIMIT:
            raise PatchSyntaxError("The patch has too many different lines for one file. Split it into several patches.")
        self._indexes: dict[Pass, _Index] = {}

    def find(self, block: Sequence[str], start: int, *, at_end: bool = False) -> Match | None:
        """First place of the block at or after `start`; with `at_end` only the very end of the file counts.

        All lines of the block must have been named as `wanted`. An empty block is found at `start`.
        """
        if not block:
            return Match(start, Pass.EXACT, (start,))
        for how in Pass:
            places = self._places(how, block, start, at_end=at_end)
            if places:
                return Match(places[0], how, places)
        return None

    def _places(self, how: Pass, block: Sequence[str], start: int, *, at_end: bool) -> tuple[int, ...]:
        index = self._indexes.get(how)
        if index is None:
            index = self._indexes[how] = _Index(how, self._lines, self._wanted)
        needle = index.encode(block)
        if at_end:
            return (len(index.text) - len(needle),) if index.text.endswith(needle) else ()
        found: list[int] = []
        place = index.text.find(needle, start)
        while place >= 0 and len(found) < MATCH_LIMIT:
            found.append(place)
            place = index.text.find(needle, place + 1)
        return tuple(found)


def nearest_lines(lines: Sequence[str], block: Sequence[str], cursor: int) -> str:
    """The candidate lines with their numbers, or an empty string. `cursor` is where the search had started."""
    index = _by_equal_lines(lines, block)
    if index is None:
        index = _by_likeness(lines, block, cursor)
    if index is None:
        return ""
    above = " (above the place where the search started: hunks follow the order of the file)" if index < cursor else ""
    shown = lines[index : index + min(len(block), _SHOWN)]
    width = len(str(index + len(shown)))
    numbered = "\n".join(f"  {index + i + 1:>{width}} | {clip(line)}" for i, line in enumerate(shown))
    return f"Nearest lines in the file{above}:\n{numbered}"


def _by_equal_lines(lines: Sequence[str], block: Sequence[str]) -> int | None:
    """The place at which most lines of the block stand where they should, blanks at both sides ignored."""
    offsets: dict[str, list[int]] = {}
    for i, line in enumerate(block):
        text = line.strip(WHITESPACE)
        if text:
            offsets.setdefault(text, []).append(i)
    places: dict[str, list[int]] = {}
    for i, line in enumerate(lines):
        text = line.strip(WHITESPACE)
        if text in offsets:
            places.setdefault(text, []).append(i)
    votes: Counter[int] = Counter()
    for text, found in places.items():
        if len(found) <= _COMMON:
            votes.update(max(place - offset, 0) for place in found for offset in offsets[text][:_SHOWN])
    if not votes:
        return None
    most = max(votes.values())
    return min(place for place, count in votes.items() if count == most)


def _by_likeness(lines: Sequence[str], block: Sequence[str], cursor: int) -> int | None:
    """The place of the line that is most like the block's longest line."""
    offset, text = max(enumerate(block), key=lambda pair: len(pair[1].strip(WHITESPACE)))
    text = text.strip(WHITESPACE)
    if not text or len(text) > _COMPARED:
        return None
    first = max(0, min(cursor, len(lines) - _COMPARED))
    matcher = SequenceMatcher(a="", b=text, autojunk=False)
    best, best_ratio = None, _LIKENESS
    for i, line in enumerate(lines[first : first + _COMPARED], start=first):
        if len(line) > 4 * len(text) + 40:
            continue
        matcher.set_seq1(line.strip(WHITESPACE))
        if matcher.real_quick_ratio() > best_ratio and matcher.quick_ratio() > best_ratio and matcher.ratio() > best_ratio:
            best, best_ratio = i, matcher.ratio()
    return None if best is None else max(best - offset, 0)
