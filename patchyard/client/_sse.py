"""Reads Server-Sent Events from chunks of bytes (WHATWG HTML, "Interpreting an event stream")."""

from collections.abc import AsyncIterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Frame:
    """One dispatched event."""

    event: str
    data: str
    id: str | None
    """The id that this very frame carried; None: it had none."""


class FrameParser:
    """Feed it chunks, get whole frames; a frame that is cut off at the end of the stream is dropped."""

    def __init__(self) -> None:
        self._rest = b""
        self._event = ""
        self._data: list[str] = []
        self._id: str | None = None

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that became complete. Lines end with LF or CRLF, as Patchyard and its proxies write them."""
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        frames = []
        for raw in lines:
            frame = self._line(raw.removesuffix(b"\r").decode("utf-8", "replace"))
            if frame is not None:
                frames.append(frame)
        return frames

    def _line(self, line: str) -> Frame | None:
        if not line:
            return self._dispatch()
        if line.startswith(":"):
            return None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._id = value
        return None

    def _dispatch(self) -> Frame | None:
        frame = Frame(self._event or "message", "\n".join(self._data), self._id) if self._data else None
        self._event, self._data, self._id = "", [], None
        return frame


async def frames(chunks: AsyncIterator[bytes]) -> AsyncIterator[Frame]:
    """The frames of a response body."""
    parser = FrameParser()
    async for chunk in chunks:
        for frame in parser.feed(chunk):
            yield frame
