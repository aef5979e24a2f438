"""What the rollout needs from outside.

SegmentStore   named immutable byte strings   adapters.store.StoredSegments, patchyard.testing.store
NumberedLine   a committed line               adapters.queue's CommittedLine, StoredLine here
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class NumberedLine(Protocol):
    """A committed rollout line as JSON in UTF-8, with the number that is inside it."""

    @property
    def ordinal(self) -> int:
        """0-based, continuous in a thread."""
        ...

    @property
    def json(self) -> bytes:
        """The line without its newline."""
        ...


@dataclass(frozen=True)
class StoredLine:
    """A line as it was found in a segment."""

    ordinal: int
    json: bytes


@dataclass(frozen=True)
class TailPiece:
    """The last bytes before `end` of a segment."""

    data: bytes
    start: int
    """Offset of the first byte of `data`."""


class SegmentStore(Protocol):
    """Where segments are. Errors of the store pass through."""

    async def create(self, key: str, data: bytes) -> bool:
        """Write a segment durably unless it exists. False: it exists, nothing was written."""
        ...

    async def read(self, key: str) -> bytes | None:
        """The whole segment; None: it does not exist (any more)."""
        ...

    async def read_before(self, key: str, end: int | None, length: int) -> TailPiece | None:
        """Up to `length` bytes that end at offset `end` (None: at the end of the segment); None: it does not exist."""
        ...

    async def list(self, prefix: str) -> Sequence[str]:
        """Every key that starts with `prefix`, in order."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove segments; those that do not exist are no error."""
        ...
