"""Server-sent events from bytes, piece by piece."""

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
        """Pieces of the event that has no end yet: joined once, so that a huge event costs its length only."""
        self._size = 0
        self._ends_with_lf = False
        self._after_cr = False
        self._first = True

    def feed(self, piece: bytes) -> list[SseEvent]:
        """Events that end in this piece. EventTooLarge: give up."""
        piece = self._normal(piece)
        if not piece:
            return []
        if b"\n\n" not in piece and not (self._ends_with_lf and piece.startswith(b"\n")):
            self._keep(piece)
            return []
        blocks = (b"".join([*self._tail, piece]) if self._tail else piece).split(b"\n\n")
        self._tail, self._size, self._ends_with_lf = [], 0, False
        self._keep(blocks.pop())
        events = [event for block in blocks if block and (event := _event(block)) is not None]
        if any(len(event.data) > self._max for event in events):
            raise EventTooLarge
        return events

    def _normal(self, piece: bytes) -> bytes:
        """The piece with line feeds only, without a byte order mark at the very start."""
        if self._after_cr and piece:
            self._after_cr = False
            if piece.startswith(b"\n"):
                piece = piece[1:]
        if b"\r" in piece:
            self._after_cr = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self._first and piece:
            piece = b"".join([*self._tail, piece])
            self._tail, self._size = [], 0
            if piece != b"\xef\xbb\xbf"[: len(piece)]:
                self._first = False
                piece = piece.removeprefix(b"\xef\xbb\xbf")
        return piece

    def _keep(self, rest: bytes) -> None:
        if not rest:
            return
        self._size += len(rest)
        self._ends_with_lf = rest.endswith(b"\n")
        if self._size <= self._max:
            self._tail.append(rest)
            return
        # Comments keep a silent stream alive without ever ending an event: they need not be kept.
        lines = b"".join([*self._tail, rest]).split(b"\n")
        kept = b"\n".join([line for line in lines[:-1] if not line.startswith(b":")] + lines[-1:])
        if len(kept) > self._max:
            raise EventTooLarge
        self._tail, self._size = [kept], len(kept)


def _event(block: bytes) -> SseEvent | None:
    """An event from its lines; None for a block without data. The usual two forms are read without looking at each line."""
    if block.startswith(b"event: "):
        end = block.find(b"\n")
        if block[end + 1 : end + 7] == b"data: " and block.find(b"\n", end + 7) < 0:
            return SseEvent(block[7:end], block[end + 7 :])
    elif block.startswith(b"data: ") and b"\n" not in block:
        return SseEvent(b"", block[6:])
    name, data = b"", []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return SseEvent(name, b"\n".join(data)) if data else None
