"""The `apply_patch` program of the box: from any command to its handler and back, whatever else speaks to its socket."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from patchyard.adapters.sandbox import Box
from patchyard.agent.ports import PatchCall, PatchHandler, PatchReply, SandboxExecRequest
from patchyard.protocol.policies import DangerFullAccess, ReadOnly, SandboxPolicy, WorkspaceWrite
from tests.conformance.sandbox_suite import Ran, read_all, read_until, request, run, shell
from tests.waiting import WAIT_S

from .conftest import DockerBackend

pytestmark = pytest.mark.engine

POLICIES: list[SandboxPolicy] = [ReadOnly(), WorkspaceWrite(), DangerFullAccess()]
HOSTILE = """
import os, socket, struct, sys, time
def reach():
    s = socket.socket(socket.AF_UNIX)
    s.connect("\\0patchyard-boxd")
    return s
def said(s):
    data = b""
    while part := s.recv(65536):
        data += part
    return data
"""


class Desk:
    """A handler that remembers who asked."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.calls: list[PatchCall] = []

    async def __call__(self, call: PatchCall) -> PatchReply:
        self.calls.append(call)
        return PatchReply(0, stdout=f"{self.name}:{len(call.patch)}:{call.cwd}\n")


async def ran(box: Box, script: str, desk: PatchHandler | None, **more: object) -> Ran:
    process = await box.spawn(request("bash", "-c", script, **more), on_patch=desk)  # type: ignore[arg-type]
    await process.write(b"", eof=True)
    output = await read_all(process)
    return Ran(output, await process.wait())


def in_box(backend: DockerBackend, scenario: Callable[[Box], Awaitable[None]], **changes: object) -> None:
    async def go() -> None:
        async with asyncio.timeout(WAIT_S), backend.open(**changes) as box:
            await scenario(box)
            assert (await shell(box, "echo well")).output == b"well\n"

    asyncio.run(go())


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.type)
def test_every_way_to_start_it_reaches_the_handler_with_its_own_folder(backend: DockerBackend, policy: SandboxPolicy) -> None:
    ways = {
        "cd /tmp && apply_patch <<'EOF'\none\nEOF": PatchCall("/tmp", b"one\n"),
        "applypatch two": PatchCall("/workspace", b"two"),
        "printf three | apply_patch": PatchCall("/workspace", b"three"),
        "python3 -c \"import subprocess; subprocess.run(['apply_patch', 'fö'], cwd='/', check=True)\"": PatchCall(
            "/", "fö".encode()
        ),
        "(setsid sh -c 'env -i /usr/local/bin/apply_patch five') ": PatchCall("/workspace", b"five"),
        "timeout 60 xargs -n1 applypatch <<<six": PatchCall("/workspace", b"six"),
    }

    async def scenario(box: Box) -> None:
        for script, call in ways.items():
            desk = Desk()
            assert (await ran(box, script, desk, policy=policy)).status.code == 0, script
            assert desk.calls == [call]

    in_box(backend, scenario, policy=DangerFullAccess())


def test_codes_and_both_texts_come_back_and_usage_is_as_recorded(backend: DockerBackend) -> None:
    async def refuse(call: PatchCall) -> PatchReply:
        return PatchReply(1, stdout="out\n", stderr="err\n")

    async def scenario(box: Box) -> None:
        answer = await ran(box, "apply_patch x 2>/dev/null; echo $?; apply_patch x >/dev/null; exit $?", refuse)
        assert (answer.output, answer.status.code) == (b"out\n1\nerr\n", 1)
        usage = await ran(box, "apply_patch </dev/null; echo $?; apply_patch a b; echo $?", refuse)
        assert usage.output.decode() == (
            "Usage: apply_patch 'PATCH'\n       echo 'PATCH' | apply_patch\n2\n"
            "Error: apply_patch accepts exactly one argument.\n2\n"
        )

    in_box(backend, scenario)


def test_a_command_without_handler_is_told_so(backend: DockerBackend) -> None:
    async def scenario(box: Box) -> None:
        answer = await ran(box, "apply_patch x", None)
        assert (answer.status.code, answer.output) == (
            1,
            b"apply_patch can't be used in this command. Nothing was changed.\n",
        )

    in_box(backend, scenario)


def test_a_fault_of_the_handler_is_an_answer(backend: DockerBackend, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(call: PatchCall) -> PatchReply:
        raise RuntimeError("secret detail")

    async def scenario(box: Box) -> None:
        answer = await ran(box, "apply_patch x", broken)
        assert answer.status.code == 1
        assert b"fault in the service" in answer.output
        assert b"secret" not in answer.output

    in_box(backend, scenario)
    assert "secret detail" in caplog.text


def test_each_command_speaks_for_itself_at_once(backend: DockerBackend) -> None:
    async def scenario(box: Box) -> None:
        desks = [Desk(str(number)) for number in range(30)]
        script = "for i in 1 2 3; do head -c 100000 /dev/zero | tr '\\0' x | apply_patch & done; wait"
        answers = await asyncio.gather(*(ran(box, script, desk) for desk in desks))
        assert [answer.output for answer in answers] == [f"{desk.name}:100000:/workspace\n".encode() * 3 for desk in desks]

    in_box(backend, scenario)


def test_a_patch_may_have_two_mebibytes(backend: DockerBackend) -> None:
    async def scenario(box: Box) -> None:
        desk = Desk()
        script = "head -c {} /dev/zero | tr '\\0' x | apply_patch"
        assert (await ran(box, script.format(2 << 20), desk)).output == b":2097152:/workspace\n"
        late = await ran(box, script.format((2 << 20) + 1), desk)
        assert (late.status.code, b"over 2 MiB" in late.output, len(desk.calls)) == (1, True, 1)

    in_box(backend, scenario)


def test_garbage_on_the_socket_hurts_nobody(backend: DockerBackend) -> None:
    garbage = """
answers = []
for data in (b"", b"x", b"\\xff" * 100, struct.pack(">II", 10, 10), struct.pack(">II", 2**32 - 1, 0) + b"/",
             struct.pack(">II", 4, 1) + b"evil" + b"p", struct.pack(">II", 3, 1) + b"/\\0a" + b"p"):
    s = reach(); s.sendall(data); s.shutdown(socket.SHUT_WR); answers.append(said(s)[:1])
print(answers == [b"\\x01"] * len(answers))
s = reach()
try:
    for _ in range(64): s.sendall(b"y" * 65536)
except OSError: print("cut")
s = reach(); s.sendall(struct.pack(">II", 1, 1) + b"/"); os.kill(os.getpid(), 9)
"""

    async def scenario(box: Box) -> None:
        desk = Desk()
        hostile = await run_python(box, HOSTILE + garbage, desk)
        assert (hostile.output, hostile.status.signal) == (b"True\ncut\n", 9)
        assert desk.calls == []
        assert (await ran(box, "apply_patch x", desk)).status.code == 0

    in_box(backend, scenario)


def test_a_flood_of_connections_waits_and_ends_with_its_command(backend: DockerBackend) -> None:
    flood = """
held = []
for _ in range(200):
    s = socket.socket(socket.AF_UNIX); s.setblocking(False)
    try: s.connect("\\0patchyard-boxd")
    except OSError: pass
    held.append(s)
print("held", flush=True)
time.sleep(100)
"""

    async def scenario(box: Box) -> None:
        process = await box.spawn(request("python3", "-c", HOSTILE + flood), on_patch=Desk())
        assert await process.read() == b"held\n"
        desk = Desk()
        waiting = asyncio.create_task(ran(box, "apply_patch x", desk))
        assert (await shell(box, "echo others run")).output == b"others run\n"
        await process.kill()
        assert (await waiting).status.code == 0

    in_box(backend, scenario)


def test_the_handler_is_cancelled_when_its_program_is_killed(backend: DockerBackend) -> None:
    begun, over = asyncio.Event(), asyncio.Event()

    async def slow(call: PatchCall) -> PatchReply:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            over.set()
        raise AssertionError

    async def scenario(box: Box) -> None:
        process = await box.spawn(request("apply_patch", "x"), on_patch=slow)
        await begun.wait()
        await process.kill()
        await over.wait()
        begun.clear(), over.clear()
        await box.spawn(request("apply_patch", "x"), on_patch=slow)
        await begun.wait()

    async def go() -> None:
        async with asyncio.timeout(WAIT_S), backend.open() as box:
            await scenario(box)
        await over.wait()

    asyncio.run(go())


def test_a_passed_on_connection_speaks_for_the_command_that_made_it(backend: DockerBackend) -> None:
    """The policy is that of who connected: a socket that changes hands brings nobody more rights."""
    give = """
at = socket.socket(socket.AF_UNIX); at.bind("\\0meeting"); at.listen(); print("ready", flush=True)
peer, _ = at.accept()
s = reach(); socket.send_fds(peer, [b"x"], [s.fileno()]); peer.recv(1)
"""
    take = """
peer = socket.socket(socket.AF_UNIX); peer.connect("\\0meeting")
_, fds, _, _ = socket.recv_fds(peer, 1, 1)
s = socket.socket(fileno=fds[0]); s.sendall(struct.pack(">II", 1, 1) + b"/p"); s.shutdown(socket.SHUT_WR); said(s); peer.send(b"x")
"""

    async def scenario(box: Box) -> None:
        narrow, wide = Desk(), Desk()
        giver = await box.spawn(request("python3", "-c", HOSTILE + give, policy=ReadOnly()), on_patch=narrow)
        assert await giver.read() == b"ready\n"
        taker = await run_python(box, HOSTILE + take, wide)
        assert (taker.status.code, taker.output) == (0, b"")
        assert (len(narrow.calls), len(wide.calls)) == (1, 0)

    in_box(backend, scenario)


def test_what_is_typed_into_a_session_reaches_the_handler_too(backend: DockerBackend) -> None:
    async def scenario(box: Box) -> None:
        desk = Desk()
        session = await box.spawn(request("bash", "--norc", tty=True), on_patch=desk)
        await session.write(b"cd /tmp; apply_patch <<'EOF'\none\nEOF\n")
        await read_until(session, b":4:/tmp")
        assert desk.calls == [PatchCall("/tmp", b"one\n")]

    in_box(backend, scenario)


async def run_python(box: Box, program: str, desk: PatchHandler) -> Ran:
    process = await box.spawn(
        SandboxExecRequest(("python3", "-u", "-c", program), "/workspace", {}, WorkspaceWrite()), on_patch=desk
    )
    return Ran(await read_all(process), await process.wait())


def test_the_program_is_no_builtin_of_boxd(backend: DockerBackend) -> None:
    async def scenario(box: Box) -> None:
        assert (await run(box, "readlink", "/usr/local/bin/applypatch")).output == b"apply_patch\n"

    in_box(backend, scenario)
