"""Reads what the diff script prints: nested repositories, `git diff --numstat -z`, then the patch."""

import re
from typing import NamedTuple

_COUNTS = re.compile(rb"(\d+|-)\t(\d+|-)\t")


class Changes(NamedTuple):
    """A diff taken apart. `nested`: repositories that were made inside the tree, which a patch can't carry."""

    patch: bytes
    files: int
    insertions: int
    deletions: int
    nested: tuple[str, ...]


class _Fields:
    """NUL-terminated fields, read without copying the patch behind them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def next(self) -> bytes:
        end = self._data.index(b"\0", self.position)
        field = self._data[self.position : end]
        self.position = end + 1
        return field

    def begins_with(self, prefix: bytes) -> bool:
        return self._data.startswith(prefix, self.position)

    def counts(self) -> "re.Match[bytes] | None":
        return _COUNTS.match(self._data, self.position)


def parse_changes(output: bytes) -> Changes:
    """ValueError when this is not such an output."""
    fields = _Fields(output)
    nested: list[str] = []
    while fields.begins_with(b"N"):
        nested.append(fields.next()[1:].removeprefix(b"./").decode("utf-8", "surrogateescape"))
    files = insertions = deletions = 0
    while (found := fields.counts()) is not None:
        files += 1
        insertions += 0 if found[1] == b"-" else int(found[1])
        deletions += 0 if found[2] == b"-" else int(found[2])
        fields.position = found.end()
        if fields.next() == b"":  # a rename: old and new name follow
            fields.next()
            fields.next()
    if fields.begins_with(b"\0"):
        fields.position += 1
    return Changes(output[fields.position :], files, insertions, deletions, tuple(nested))
