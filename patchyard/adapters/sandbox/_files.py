"""File operations as boxd's builtins take and answer them (its side: sandbox_images/boxd/files.c)."""

import errno
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from patchyard.agent.ports import FileContent, FileOperation, SandboxError, WriteFile
from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.policies import SandboxPolicy, WorkspaceWrite

from ._confinement import WORKSPACE, Place, place, writable_roots
from ._frames import read_u32, u32
from .errors import BadCommand, BoxLost, BoxRefused, DiskFull

MAX_FILE = 1 << 30
_KEEP_MODE = 0xFFFF_FFFF
_PART = 64 << 10


class ApplyPlan(NamedTuple):
    """Arguments of the builtin and the operations placed below them."""

    roots: tuple[str, ...]
    places: tuple[Place, ...]


def readable_place(path: str, policy: SandboxPolicy) -> Place:
    """Reading is open everywhere, but a path in the workspace must stay in it."""
    inner = (WORKSPACE, *policy.writable_roots) if isinstance(policy, WorkspaceWrite) else (WORKSPACE,)
    return place(path, ("/", *inner))


def plan_apply(operations: Sequence[FileOperation], policy: SandboxPolicy) -> ApplyPlan:
    """Place every operation below a writable root. BoxRefused, BadCommand."""
    allowed = writable_roots(policy)
    places = tuple(place(operation.path, allowed) for operation in operations)
    for operation, placed in zip(operations, places, strict=True):
        if not placed.path:
            raise BadCommand(f"{operation.path} is a directory.")
        if isinstance(operation, WriteFile) and len(operation.data) > MAX_FILE:
            raise BadCommand(f"{operation.path} is over {MAX_FILE} bytes.", code=ErrorCode.PAYLOAD_TOO_LARGE)
    return ApplyPlan(tuple(dict.fromkeys(placed.root for placed in places)), places)


def encode_apply(operations: Sequence[FileOperation], planned: ApplyPlan) -> Iterator[bytes]:
    """The builtin's stdin, in parts that do not copy a big file twice."""
    for operation, placed in zip(operations, planned.places, strict=True):
        path = os.fsencode(placed.path)
        write = operation if isinstance(operation, WriteFile) else None
        data = write.data if write else b""
        mode = write.mode if write and write.mode is not None else _KEEP_MODE
        kind = b"w" if write else b"d"
        yield kind + u32(mode) + u32(planned.roots.index(placed.root)) + u32(len(path)) + path + u32(len(data))
        for at in range(0, len(data), _PART):
            yield data[at : at + _PART]
    yield b"e"


def decode_read(answer: bytes, path: str, limit: int) -> FileContent | None:
    """None when the file does not exist. SandboxError otherwise."""
    if answer[:1] == b"+" and len(answer) >= 5:
        return FileContent(answer[5:], read_u32(answer, 1))
    reason, _, error = _failure(answer)
    if reason == "m":
        return None
    raise _refusal(reason, error, path, limit=limit)


def check_apply(answer: bytes, operations: Sequence[FileOperation]) -> None:
    """SandboxError with the operation that failed; nothing was changed then."""
    if answer == b"+":
        return
    reason, number, error = _failure(answer)
    path = operations[number].path if number < len(operations) else "the last operation"
    raise _refusal(reason, error, path, limit=MAX_FILE)


class _Failure(NamedTuple):
    reason: str
    number: int
    error: int


def _failure(answer: bytes) -> _Failure:
    if len(answer) != 10 or answer[:1] != b"-":
        raise BoxLost("The file operation was killed before it was done; nothing was changed.")
    return _Failure(chr(answer[1]), read_u32(answer, 2), read_u32(answer, 6))


def _refusal(reason: str, error: int, path: str, *, limit: int) -> SandboxError:
    match reason:
        case "m":
            return BadCommand(f"{path} does not exist.", code=ErrorCode.NOT_FOUND)
        case "f":
            return BadCommand(f"{path} is not a regular file, or something on the way to it is no directory.")
        case "e":
            return BoxRefused(f"{path} leads outside the folders that this sandbox policy allows.")
        case "l":
            return BadCommand(f"{path} is over {limit} bytes.", code=ErrorCode.PAYLOAD_TOO_LARGE)
        case "p":
            return BoxRefused(f"{path} is protected or not writable under this sandbox policy.")
        case "s":
            return DiskFull(f"There is no space left in the sandbox for {path}; nothing was changed.")
        case _:
            name = errno.errorcode.get(error, str(error))
            return BadCommand(f"{path} could not be accessed ({name}).", code=ErrorCode.INTERNAL)
