"""Requests of the box's `apply_patch` program: put together, handed to the handler of their command, answered."""

import asyncio
import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from patchyard.agent.ports import PatchCall, PatchHandler, PatchReply

from ._frames import Frame, ProtocolError, ToBox, read_u32

_log = logging.getLogger(__name__)

MAX_PATCH = 2 << 20
"""Bytes of a patch; the program refuses more."""
MAX_TEXT = 256 << 10
"""Bytes of each text of an answer; more is cut."""
_MAX_REQUEST = MAX_PATCH + (8 << 10)
_MAX_REQUESTS = 16
_HEAD = struct.Struct(">II")
_NO_HANDLER = PatchReply(1, stderr="apply_patch can't be used in this command. Nothing was changed.\n")
_MALFORMED = PatchReply(1, stderr="apply_patch: this is no request of the apply_patch program. Nothing was changed.\n")
_FAULT = PatchReply(1, stderr="apply_patch failed because of a fault in the service. Look at the files before you go on.\n")


@dataclass
class _Request:
    command: int
    data: bytearray = field(default_factory=bytearray)
    task: asyncio.Task[None] | None = None


class PatchRequests:
    """All of one box. boxd has at most 16 open, so at most 16 times MAX_PATCH bytes are held here."""

    def __init__(self, send: Callable[[ToBox, int, bytes], None], handler_of: Callable[[int], PatchHandler | None]) -> None:
        self._send = send
        self._handler_of = handler_of
        self._open: dict[int, _Request] = {}

    def on_frame(self, frame: Frame) -> None:
        """Take an APPLY frame; its id is the request's. ProtocolError on what boxd never sends."""
        kind, payload = frame.payload[:1], frame.payload[1:]
        if kind == b"b" and len(payload) == 4 and frame.id not in self._open and len(self._open) < _MAX_REQUESTS:
            self._open[frame.id] = _Request(read_u32(payload))
            return
        request = self._open.get(frame.id)
        if request is None and kind == b"g":
            return  # it crossed the answer
        if request is None or (request.task is not None and kind != b"g"):
            raise ProtocolError(f"an apply frame of kind {kind!r} out of turn")
        match kind:
            case b"d" if len(request.data) + len(payload) <= _MAX_REQUEST:
                request.data += payload
            case b"w":
                request.task = asyncio.create_task(self._run(frame.id, request), name="box-patch")
            case b"g":
                del self._open[frame.id]
                if request.task is not None:
                    request.task.cancel()
            case _:
                raise ProtocolError(f"an apply frame of kind {kind!r}")

    def close(self) -> None:
        """The box is gone, and who asked with it."""
        for request in self._open.values():
            if request.task is not None:
                request.task.cancel()
        self._open.clear()

    async def _run(self, ident: int, request: _Request) -> None:
        reply = await self._reply(request)
        if self._open.pop(ident, None) is not None:
            self._send(ToBox.ANSWER, ident, encode_reply(reply))

    async def _reply(self, request: _Request) -> PatchReply:
        call = decode_call(bytes(request.data))
        request.data.clear()
        handler = self._handler_of(request.command)
        if call is None or handler is None:
            return _MALFORMED if call is None else _NO_HANDLER
        try:
            return await handler(call)
        except Exception:  # noqa: BLE001 - boundary
            # The boundary of a foreign callable: a fault in it must not leave the program without an answer.
            _log.exception("a patch from a box failed")
            return _FAULT


def decode_call(data: bytes) -> PatchCall | None:
    """What the program sent; None when it is cut off or no request at all."""
    if len(data) < _HEAD.size:
        return None
    folder, patch = _HEAD.unpack_from(data)
    if len(data) != _HEAD.size + folder + patch:
        return None
    cwd = data[_HEAD.size : _HEAD.size + folder].decode("utf-8", "surrogateescape")
    return PatchCall(cwd, data[_HEAD.size + folder :]) if cwd.startswith("/") and "\0" not in cwd else None


def encode_reply(reply: PatchReply) -> bytes:
    """What the program reads."""
    out, err = (text.encode("utf-8", "replace")[:MAX_TEXT] for text in (reply.stdout, reply.stderr))
    return struct.pack(">BI", reply.code, len(out)) + out + err
