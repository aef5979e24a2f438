"""The frames of boxd (its side: sandbox_images/boxd/boxd.h) and the engine's stream format around them."""

import struct
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum, StrEnum
from typing import NamedTuple

PROTOCOL = 1
MAX_SPAWN = (4 << 20) - 64
"""Bytes of a spawn frame that boxd takes."""
STDIN_WINDOW = 256 << 10
"""Bytes of stdin that may be on their way; boxd ends the box on more."""
OUTPUT_WINDOW = 256 << 10
"""Bytes of a command's output that may be on their way or unread here."""

_HEAD = struct.Struct(">IcI")
_U32 = struct.Struct(">I")
_ENGINE_HEAD = struct.Struct(">BxxxI")
_MAX_INCOMING = 1 << 20


class ToBox(StrEnum):
    """Frame types from the host."""

    SPAWN = "S"
    STDIN = "I"
    STDIN_END = "E"
    CREDIT = "C"
    RESIZE = "W"
    SIGNAL = "K"
    PING = "P"
    ANSWER = "A"
    """To an APPLY request; ids are requests."""


class FromBox(StrEnum):
    """Frame types from boxd."""

    HELLO = "H"
    BEGUN = "B"
    FAILED = "F"
    OUTPUT = "O"
    TAKEN = "T"
    UNUSABLE = "U"
    EXIT = "X"
    DONE = "D"
    GONE = "G"
    PONG = "p"
    APPLY = "A"
    """The apply_patch program; ids are requests, not commands."""


class Stage(IntEnum):
    """Where a spawn failed."""

    FORK = 0
    TTY = 1
    CWD = 2
    LIMIT = 3
    CONFINE = 4
    EXEC = 5
    SPEC = 6


class Frame(NamedTuple):
    """One frame from boxd."""

    type: FromBox
    id: int
    payload: bytes


class ProtocolError(Exception):
    """The other side does not speak boxd's protocol."""


def encode(kind: ToBox, ident: int, payload: bytes = b"") -> bytes:
    """A frame to boxd."""
    return _HEAD.pack(len(payload) + 5, kind.encode(), ident) + payload


def u32(value: int) -> bytes:
    """Four bytes, big endian."""
    return _U32.pack(value)


def read_u32(data: bytes, offset: int = 0) -> int:
    """Four bytes, big endian."""
    return int(_U32.unpack_from(data, offset)[0])


def spawn_payload(records: Iterable[tuple[str, str]]) -> bytes:
    """Records of a spawn frame. ValueError: a NUL in a value, or more than boxd takes."""
    parts = []
    for key, value in records:
        raw = value.encode("utf-8", "surrogateescape")
        if b"\0" in raw:
            raise ValueError("an argument, variable or path holds a NUL byte")
        parts.append(key.encode() + raw + b"\0")
    payload = b"".join(parts)
    if len(payload) > MAX_SPAWN:
        raise ValueError(f"arguments and environment are over {MAX_SPAWN} bytes")
    return payload


def environment(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Spawn records of variables. ValueError: a name that no environment can hold."""
    for name, value in env.items():
        if not name or "=" in name:
            raise ValueError(f"{name!r} is no name of an environment variable")
        yield "e", f"{name}={value}"


class EngineDemux:
    """Takes the engine's 8-byte stream headers off (Tty=false); keeps stdout, and the last of stderr for error messages."""

    def __init__(self) -> None:
        self.stderr = bytearray()
        self._pending = bytearray()
        self._left = 0
        self._stream = 0

    def feed(self, data: bytes) -> bytes:
        """Raw bytes in, stdout bytes out. ProtocolError when there is no header where one must be."""
        self._pending += data
        out = bytearray()
        while True:
            if not self._left:
                if len(self._pending) < _ENGINE_HEAD.size:
                    return bytes(out)
                self._stream, self._left = _ENGINE_HEAD.unpack_from(self._pending)
                if self._stream not in (1, 2):
                    raise ProtocolError("the engine's stream has no header")
                del self._pending[: _ENGINE_HEAD.size]
            part = self._pending[: self._left]
            if not part and self._left:
                return bytes(out)
            del self._pending[: len(part)]
            self._left -= len(part)
            if self._stream == 1:
                out += part
            else:
                self.stderr = (self.stderr + part)[-2000:]


class FrameDecoder:
    """Bytes in, whole frames out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes. ProtocolError on a length or type that boxd never sends."""
        self._buffer += data
        frames: list[Frame] = []
        at = 0
        while len(self._buffer) - at >= _HEAD.size:
            size, kind, ident = _HEAD.unpack_from(self._buffer, at)
            if not 5 <= size <= _MAX_INCOMING:
                raise ProtocolError(f"a frame of {size} bytes")
            if len(self._buffer) - at < size + 4:
                break
            try:
                frames.append(Frame(FromBox(kind.decode("latin-1")), ident, bytes(self._buffer[at + 9 : at + 4 + size])))
            except ValueError:
                raise ProtocolError(f"a frame of type {kind!r}") from None
            at += size + 4
        del self._buffer[:at]
        return frames
