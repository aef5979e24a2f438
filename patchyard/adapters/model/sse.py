"""Server-sent events from bytes, piece by piece."""

from collections.abc import Iterator
from typing import NamedTuple

MAX_EVENT_BYTES = 64 * 1024 * 1024
"""A tool's whole input comes in one event; beyond this the stream is broken or hostile."""


class EventTooLarge(Exception):
    """One event has more than MAX_EVENT_BYTES."""


class SseEvent(NamedTuple):
    """One event."""

    name: bytes
    """Value of its last `event:` line; empty without one."""
    data: bytes
    """Its `data:` lines, joined by line feeds."""


class SseParser:
    """Takes bytes in any pieces and gives the events that are complete. Lines end with LF, CR or CRLF."""

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._tail: list[bytes] = []
        """Pieces of the line that has no end yet: joined once, so that a huge line costs its length only."""
        self._size = 0
        self._after_cr = False
        self._first = True
        self._name = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[SseEvent]:
        """Events that end in this piece. EventTooLarge: give up."""
        if self._after_cr and piece:
            self._after_cr = False
            if piece.startswith(b"\n"):
                piece = piece[1:]
        self._size += len(piece)
        if b"\r" in piece:
            self._after_cr = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = piece.split(b"\n")
        if len(lines) > 1:
            lines[0] = b"".join([*self._tail, lines[0]])
            self._tail = []
        rest = lines.pop()
        if rest:
            self._tail.append(rest)
        for line in lines:
            event = self._line(line)
            if event is not None:
                self._size = len(rest)
                yield event
        if self._size > self._max:
            raise EventTooLarge

    def _line(self, line: bytes) -> SseEvent | None:
        if self._first:
            self._first = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            return self._end()
        if line.startswith(b":"):
            if not self._data:
                self._size = 0
            return None
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value
        return None

    def _end(self) -> SseEvent | None:
        """A blank line: the event, if there was data."""
        name, self._name = self._name, b""
        if not self._data:
            return None
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._data = []
        return SseEvent(name, data)
