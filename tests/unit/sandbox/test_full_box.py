"""A box without room for another process, told by a scripted boxd."""

import asyncio
import errno
import json
import struct
from collections.abc import Callable

import pytest

from patchyard.adapters.sandbox import Box, PlainStream
from patchyard.adapters.sandbox._frames import PROTOCOL, FromBox, Stage, ToBox, u32
from patchyard.agent.ports import SandboxError
from patchyard.protocol.policies import DangerFullAccess
from tests.conformance.sandbox_suite import request

HEAD = struct.Struct(">IcI")
HERE = DangerFullAccess()


HELLO = {
    "protocol": PROTOCOL,
    "uid": 1000,
    "gid": 1000,
    "cap_eff": "0",
    "cap_bnd": "0",
    "no_new_privs": "1",
    "seccomp": "2",
    "landlock_abi": 0,
    "read_only_root": True,
    "open_interfaces": 0,
    "pid": 1,
}


class FullBox:
    """Room for one command. Whoever is started beside it gets EAGAIN until the first is gone. Is the writer of its own stream."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader()
        self.tell(FromBox.HELLO, 0, json.dumps(HELLO).encode())
        self.held: int | None = None
        self.refused = 0
        self.after_refusal: Callable[[], None] = lambda: None

    def tell(self, kind: FromBox, ident: int, payload: bytes = b"") -> None:
        self.reader.feed_data(HEAD.pack(len(payload) + 5, kind.encode(), ident) + payload)

    def write(self, data: bytes) -> None:
        _, kind, ident = HEAD.unpack_from(data)
        if kind.decode() != ToBox.SPAWN:
            return
        if self.held is None:
            self.held = ident
            self.tell(FromBox.BEGUN, ident)
            return
        self.refused += 1
        self.tell(FromBox.FAILED, ident, bytes([Stage.FORK]) + u32(errno.EAGAIN))
        self.after_refusal()

    async def drain(self) -> None:
        """Everything was taken at once."""

    def close(self) -> None:
        self.reader.feed_eof()

    def leave(self) -> None:
        ident, self.held = self.held, None
        assert ident is not None
        self.tell(FromBox.GONE, ident)


def using(work: Callable[[FullBox, Box], object]) -> None:
    async def main() -> None:
        boxd = FullBox()
        box = await Box.open(boxd.reader, boxd, policy=HERE, silence_s=600, stream=PlainStream())  # type: ignore[arg-type]
        try:
            await work(boxd, box)  # type: ignore[misc]
        finally:
            await box.close()

    asyncio.run(main())


def test_what_comes_after_a_killed_command_waits_until_that_is_gone() -> None:
    async def work(boxd: FullBox, box: Box) -> None:
        crowd = await box.spawn(request("crowd", policy=HERE))
        await crowd.kill()
        boxd.after_refusal = boxd.leave
        await box.spawn(request("true", policy=HERE))
        assert boxd.refused == 1

    using(work)


def test_a_box_that_is_full_of_what_runs_refuses_at_once() -> None:
    async def work(boxd: FullBox, box: Box) -> None:
        await box.spawn(request("crowd", policy=HERE))
        with pytest.raises(SandboxError, match="can't start another process"):
            await box.spawn(request("true", policy=HERE))
        assert boxd.refused == 1

    using(work)
