"""A few words of RESP over a unix socket: enough to ask a Redis how it is, without a client library."""

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

Reply = str | int | None | list["Reply"]


class RespError(Exception):
    """The server answered with an error."""


def ask(path: Path, *commands: Sequence[str], timeout_s: float = 2.0) -> list[Reply]:
    """Send the commands over one connection. OSError: nobody listens. RespError: a command was refused."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        connection.connect(str(path))
        connection.sendall(b"".join(_encode(command) for command in commands))
        with connection.makefile("rb") as replies:
            return [_read(replies) for _ in commands]


def is_alive(path: Path) -> bool:
    """Whether a server answers PING there."""
    try:
        return ask(path, ["PING"]) == ["PONG"]
    except (OSError, RespError):
        return False


def _encode(command: Sequence[str]) -> bytes:
    parts = [word.encode() for word in command]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def _read(replies: BinaryIO) -> Reply:
    line = replies.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionResetError("the server closed the connection")
    kind, rest = line[:1], line[1:-2].decode()
    if kind == b"+":
        return rest
    if kind == b"-":
        raise RespError(rest)
    if kind == b":":
        return int(rest)
    if kind == b"$":
        return None if rest == "-1" else replies.read(int(rest) + 2)[:-2].decode("utf-8", "replace")
    if kind == b"*":
        return [_read(replies) for _ in range(int(rest))]
    raise RespError(f"unexpected reply {line!r}")
