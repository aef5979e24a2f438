"""boxd itself, run without a container: the stream's rules and its end."""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from patchyard.adapters.sandbox import Box, PlainStream
from patchyard.adapters.sandbox._frames import Frame, FrameDecoder, FromBox, ToBox, encode, spawn_payload, u32
from patchyard.protocol.policies import DangerFullAccess
from tests.conformance.sandbox_suite import read_all, read_until, request, run
from tests.waiting import WAIT_S

SOURCES = Path(__file__).resolve().parents[3] / "sandbox_images/boxd"
HERE = DangerFullAccess()

pytestmark = pytest.mark.skipif(not shutil.which("musl-gcc") or not shutil.which("make"), reason="needs musl-gcc and make")


@pytest.fixture(scope="session")
def boxd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("boxd")
    shutil.copytree(SOURCES, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("boxd"))
    subprocess.run(["make", "-s", "-C", folder, "boxd", "lines"], check=True)
    return folder / "boxd"


class Raw:
    """Frames by hand."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._decoder = FrameDecoder()
        self._frames: list[Frame] = []

    def send(self, kind: ToBox, ident: int, payload: bytes = b"") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(encode(kind, ident, payload))

    def spawn(self, ident: int, *argv: str, credit: int = 1 << 20, **more: str) -> None:
        records = [*(("a", one) for one in argv), ("c", "/"), ("k", str(credit)), *more.items()]
        self.send(ToBox.SPAWN, ident, spawn_payload(records))

    async def next(self, *types: FromBox) -> Frame:
        assert self.process.stdout is not None
        while True:
            while self._frames:
                frame = self._frames.pop(0)
                if not types or frame.type in types:
                    return frame
            data = await self.process.stdout.read(1 << 16)
            assert data, "boxd ended"
            self._frames += self._decoder.feed(data)


@asynccontextmanager
async def started(boxd: Path, silence_s: int = 3600) -> AsyncIterator[Raw]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(boxd, str(silence_s), stdin=pipe, stdout=pipe)
    try:
        async with asyncio.timeout(WAIT_S):
            yield Raw(process)
    finally:
        if process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()
        await process.wait()


def with_boxd(boxd: Path, scenario: Callable[[Raw], Awaitable[None]], silence_s: int = 3600) -> None:
    async def go() -> None:
        async with started(boxd, silence_s) as raw:
            await scenario(raw)

    asyncio.run(go())


def test_hello_tells_what_is_so(boxd: Path) -> None:
    own_capabilities = Path("/proc/self/status").read_text().split("CapEff:")[1].split()[0]

    async def scenario(raw: Raw) -> None:
        hello = json.loads((await raw.next(FromBox.HELLO)).payload)
        assert (hello["protocol"], hello["uid"], hello["pid"]) == (1, os.getuid(), raw.process.pid)
        assert hello["cap_eff"] == own_capabilities

    with_boxd(boxd, scenario)


def test_no_more_output_than_credit(boxd: Path) -> None:
    async def scenario(raw: Raw) -> None:
        raw.spawn(1, "cat", "/dev/zero", credit=1000)
        assert len((await raw.next(FromBox.OUTPUT)).payload) == 1000
        raw.send(ToBox.PING, 9, b"still there")
        assert await raw.next(FromBox.OUTPUT, FromBox.PONG) == Frame(FromBox.PONG, 9, b"still there")
        raw.send(ToBox.CREDIT, 1, u32(7))
        assert len((await raw.next(FromBox.OUTPUT)).payload) == 7
        raw.send(ToBox.SIGNAL, 1, b"\x09")
        assert json.loads((await raw.next(FromBox.EXIT)).payload)["signal"] == 9

    with_boxd(boxd, scenario)


def test_output_that_waits_for_credit_survives_the_exit(boxd: Path) -> None:
    async def scenario(raw: Raw) -> None:
        raw.spawn(1, "seq", "1000", credit=10)
        await raw.next(FromBox.EXIT)
        raw.send(ToBox.CREDIT, 1, u32(1 << 20))
        output = b""
        while (frame := await raw.next(FromBox.OUTPUT, FromBox.DONE)).type is FromBox.OUTPUT:
            output += frame.payload
        everything = b"".join(b"%d\n" % number for number in range(1, 1001))
        assert output == everything[10:]  # the first ten bytes came before the exit
        assert (await raw.next()).type is FromBox.GONE

    with_boxd(boxd, scenario)


@pytest.mark.parametrize(
    "payload",
    [b"", b"a", b"true", b"atrue\0", b"c/\0", b"?x\0atrue\0c/\0", b"atrue\0c/"],
    ids=["empty", "cut", "no NUL", "no cwd", "no argv", "unknown key", "open end"],
)
def test_a_malformed_spawn_fails_alone(boxd: Path, payload: bytes) -> None:
    async def scenario(raw: Raw) -> None:
        raw.send(ToBox.SPAWN, 1, payload)
        assert (await raw.next(FromBox.FAILED)).payload[0] == 6
        raw.spawn(2, "true")
        assert (await raw.next(FromBox.EXIT)).id == 2

    with_boxd(boxd, scenario)


@pytest.mark.parametrize("garbage", [u32(0), u32(3) + b"abc", u32(1 << 31), b"GET / HTTP/1.1\r\n\r\n"])
def test_garbage_ends_the_box(boxd: Path, garbage: bytes) -> None:
    async def scenario(raw: Raw) -> None:
        assert raw.process.stdin is not None
        raw.process.stdin.write(garbage)
        assert await raw.process.wait() == 76

    with_boxd(boxd, scenario)


def test_stdin_over_the_window_ends_the_box(boxd: Path) -> None:
    async def scenario(raw: Raw) -> None:
        raw.spawn(1, "sleep", "1000")
        await raw.next(FromBox.BEGUN)
        for _ in range(6):
            raw.send(ToBox.STDIN, 1, bytes(64 << 10))
        assert await raw.process.wait() == 76

    with_boxd(boxd, scenario)


def test_silence_ends_the_box_and_a_ping_keeps_it(boxd: Path) -> None:
    async def scenario(raw: Raw) -> None:
        raw.spawn(1, "sh", "-c", "sleep 2.5; echo a")
        raw.send(ToBox.PING, 0)
        while (await raw.next(FromBox.PONG, FromBox.OUTPUT)).type is FromBox.PONG:
            raw.send(ToBox.PING, 0)
        assert await raw.process.wait() == 75

    with_boxd(boxd, scenario, silence_s=2)


def test_the_end_of_stdin_ends_the_box_and_all_in_it(boxd: Path) -> None:
    async def scenario(raw: Raw) -> None:
        assert raw.process.stdin is not None
        raw.spawn(1, "sh", "-c", "setsid sleep 1005 & echo $!; wait")
        daemon = int((await raw.next(FromBox.OUTPUT)).payload)
        raw.process.stdin.close()
        assert await raw.process.wait() == 0
        daemons.append(daemon)

    daemons: list[int] = []
    with_boxd(boxd, scenario)
    stat = Path(f"/proc/{daemons[0]}/stat")
    assert not stat.exists() or " Z " in stat.read_text()


def test_the_client_speaks_to_it(boxd: Path) -> None:
    async def go() -> None:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(boxd, "3600", stdin=pipe, stdout=pipe)
        assert process.stdin is not None
        assert process.stdout is not None
        box = await Box.open(process.stdout, process.stdin, policy=HERE, silence_s=3600, stream=PlainStream())
        assert (await run(box, "cat", stdin=b"x" * 500_000, policy=HERE, cwd="/")).output == b"x" * 500_000
        terminal = await box.spawn(request("cat", policy=HERE, cwd="/", tty=True))
        await terminal.write(b"hello\n")
        await read_until(terminal, b"hello\r\nhello\r\n")
        await terminal.kill()
        await read_all(terminal)
        await box.close()
        assert await process.wait() == 0

    asyncio.run(go())
