"""A box without room for another process, told by a scripted boxd."""

import asyncio
import errno
import struct
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from patchyard.adapters.sandbox import Box, PlainStream
from patchyard.adapters.sandbox._frames import FromBox, Stage, ToBox, u32
from patchyard.agent.ports import SandboxError
from patchyard.protocol.policies import DangerFullAccess
from tests.conformance.sandbox_suite import request

HEAD = struct.Struct(">IcI")
HERE = DangerFullAccess()


class FullBox:
    """Room for one command. Whoever is started beside it gets EAGAIN until the first is gone."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader()
        self.writer = Mock(spec=asyncio.StreamWriter, write=self.take)
        self.held: int | None = None
        self.refused = 0
        self.after_refusal: Callable[[], None] = lambda: None

    def tell(self, kind: FromBox, ident: int, payload: bytes = b"") -> None:
        self.reader.feed_data(HEAD.pack(len(payload), kind.encode(), ident) + payload)

    def take(self, data: bytes) -> None:
        size, kind, ident = HEAD.unpack_from(data)
        assert len(data) == HEAD.size + size
        if kind.decode() != ToBox.SPAWN:
            return
        if self.held is None:
            self.held = ident
            self.tell(FromBox.BEGUN, ident)
            return
        self.refused += 1
        self.tell(FromBox.FAILED, ident, bytes([Stage.FORK]) + u32(errno.EAGAIN))
        self.after_refusal()

    def leave(self) -> None:
        ident, self.held = self.held, None
        assert ident is not None
        self.tell(FromBox.GONE, ident)


def using(work: Callable[[FullBox, Box], object]) -> None:
    async def main() -> None:
        boxd = FullBox()
        box = Box(boxd.reader, boxd.writer, policy=HERE, silence_s=600, stream=PlainStream())
        box.confinement = Mock(landlock_abi=0)
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
