"""What every backend of the Sandbox port does. A backend's test module subclasses the classes and gives `backend`."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

import pytest

from patchyard.agent.ports import (
    DeleteFile,
    ExecLimits,
    ExitStatus,
    Sandbox,
    SandboxError,
    SandboxExecRequest,
    SandboxProcess,
    WriteFile,
)
from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.policies import DangerFullAccess, ReadOnly, SandboxPolicy, WorkspaceWrite
from tests.waiting import WAIT_S

WORKSPACE_WRITE = WorkspaceWrite()


class Backend(Protocol):
    """Opens a fresh sandbox with an empty, writable /workspace."""

    def open(self) -> AbstractAsyncContextManager[Sandbox]: ...


class Ran(NamedTuple):
    output: bytes
    status: ExitStatus


def request(*argv: str, policy: SandboxPolicy = WORKSPACE_WRITE, cwd: str = "/workspace", **more: object) -> SandboxExecRequest:
    return SandboxExecRequest(argv=argv, cwd=cwd, policy=policy, **{"env": {}, **more})  # type: ignore[arg-type]


async def read_all(process: SandboxProcess) -> bytes:
    output = bytearray()
    while chunk := await process.read():
        output += chunk
    return bytes(output)


async def run(box: Sandbox, *argv: str, stdin: bytes = b"", **more: object) -> Ran:
    process = await box.spawn(request(*argv, **more))  # type: ignore[arg-type]
    _, output = await asyncio.gather(process.write(stdin, eof=True), read_all(process))
    return Ran(output, await process.wait())


async def shell(box: Sandbox, script: str, **more: object) -> Ran:
    return await run(box, "sh", "-c", script, **more)


async def read_until(process: SandboxProcess, wanted: bytes) -> bytes:
    output = b""
    while wanted not in output:
        chunk = await process.read()
        assert chunk, f"ended without {wanted!r}: {output!r}"
        output += chunk
    return output


async def refused(operation: Awaitable[object]) -> ErrorCode:
    with pytest.raises(SandboxError) as caught:
        await operation
    return caught.value.info.code


def in_box(backend: Backend, scenario: Callable[[Sandbox], Awaitable[None]]) -> None:
    """Run a scenario in a fresh sandbox, within the time limit."""

    async def go() -> None:
        async with asyncio.timeout(WAIT_S), backend.open() as box:
            await scenario(box)

    asyncio.run(go())


class CommandSuite:
    def test_output_of_both_streams_keeps_its_order(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            ran = await shell(box, "for i in 1 2 3; do echo out $i; echo err $i >&2; done; exit 7")
            assert ran.output == b"out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n"
            assert (ran.status.code, ran.status.signal, ran.status.timed_out) == (7, None, False)
            assert ran.status.wall_s > 0

        in_box(backend, scenario)

    def test_a_signal_is_told_as_signal_and_code(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            ran = await shell(box, "kill -SEGV $$")
            assert (ran.status.code, ran.status.signal) == (139, 11)

        in_box(backend, scenario)

    def test_bytes_come_back_unchanged(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            every_byte = bytes(range(256)) * 20_000
            assert (await run(box, "cat", stdin=every_byte)).output == every_byte

        in_box(backend, scenario)

    def test_what_cannot_start_says_why(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            assert await refused(box.spawn(request("no-such-program"))) is ErrorCode.NOT_FOUND
            assert await refused(box.spawn(request("true", cwd="/no/such/folder"))) is ErrorCode.NOT_FOUND
            assert await refused(box.spawn(request("/etc/passwd"))) is ErrorCode.INVALID_REQUEST
            assert await refused(box.spawn(request("echo", "a\0b"))) is ErrorCode.INVALID_REQUEST
            assert (await run(box, "true")).status.code == 0

        in_box(backend, scenario)

    def test_environment_lies_over_the_boxes_own(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            ran = await shell(
                box, 'echo "$GREETING $HOME"; command -v sh >/dev/null && echo found', env={"GREETING": "hü", "HOME": "/x"}
            )
            assert ran.output.decode() == "hü /x\nfound\n"

        in_box(backend, scenario)

    def test_writing_to_a_closed_stdin_is_an_error_and_closing_it_again_is_not(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            process = await box.spawn(request("cat"))
            await process.write(b"x", eof=True)
            assert await read_all(process) == b"x"
            assert await refused(process.write(b"y")) is ErrorCode.INVALID_REQUEST
            await process.write(b"", eof=True)

        in_box(backend, scenario)

    def test_a_cancelled_read_loses_nothing(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            process = await box.spawn(request("sh", "-c", "for i in $(seq 1 300); do echo $i; sleep 0.001; done"))
            output = b""
            while True:
                reading = asyncio.create_task(process.read())
                await asyncio.wait([reading], timeout=0.0005)
                reading.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    chunk = await reading
                    if not chunk:
                        break
                    output += chunk
            assert output == b"".join(b"%d\n" % number for number in range(1, 301))

        in_box(backend, scenario)

    def test_many_commands_at_once(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            ran = await asyncio.gather(*(shell(box, f"echo {number}; exit {number}") for number in range(60)))
            assert [(one.output, one.status.code) for one in ran] == [(b"%d\n" % number, number) for number in range(60)]

        in_box(backend, scenario)

    def test_an_unread_flood_stops_its_command_and_nobody_else(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            flood = await box.spawn(request("cat", "/dev/zero"))
            await flood.read()
            for _ in range(20):
                assert (await run(box, "true")).status.code == 0
            await flood.kill()
            assert (await flood.wait()).signal == 9

        in_box(backend, scenario)


class TerminalSuite:
    def test_a_terminal_has_a_size_that_can_change(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            script = "trap 'stty size; exit 0' WINCH; stty size; while :; do sleep 0.01; done"
            process = await box.spawn(request("sh", "-c", script, tty=True))
            assert await read_until(process, b"\n") == b"24 80\r\n"
            await process.resize(50, 132)
            assert await read_all(process) == b"50 132\r\n"
            assert (await process.wait()).code == 0

        in_box(backend, scenario)

    def test_control_c_interrupts_and_end_of_input_ends(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            sleeper = await box.spawn(request("sh", "-c", "echo up; exec sleep 1000", tty=True))
            await read_until(sleeper, b"up")
            await sleeper.write(b"\x03")
            assert (await sleeper.wait()).signal == 2
            reader = await box.spawn(request("cat", tty=True))
            await reader.write(b"typed\n", eof=True)
            assert (await read_all(reader)).count(b"typed\r\n") == 2  # echoed by the terminal, then printed
            assert (await reader.wait()).code == 0

        in_box(backend, scenario)


class KillSuite:
    SPREAD = "echo up; sleep 1001 & setsid sleep 1001 & (setsid sh -c 'setsid sleep 1001 & sleep 1001 &' &); wait"

    async def until_asleep(self, box: Sandbox, count: int) -> None:
        """Until so many sleep. Processes begin and die on the kernel's time."""
        while int((await shell(box, "pgrep -fxc 'sleep 1001' || true")).output) != count:
            pass

    def test_kill_takes_the_whole_tree(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            process = await box.spawn(request("sh", "-c", self.SPREAD))
            await self.until_asleep(box, 4)
            await process.kill()
            assert (await process.wait()).signal == 9
            await self.until_asleep(box, 0)

        in_box(backend, scenario)

    def test_a_daemon_outlives_its_command_and_is_killed_through_it(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            process = await box.spawn(request("sh", "-c", "sleep 1001 & echo started"))
            assert await read_all(process) == b"started\n"
            assert (await process.wait()).code == 0
            await self.until_asleep(box, 1)
            await process.kill()
            await self.until_asleep(box, 0)
            await process.kill()

        in_box(backend, scenario)

    def test_a_daemon_that_keeps_writing_does_not_keep_its_command_open(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            process = await box.spawn(
                request("sh", "-c", "head -c 50000 /dev/zero; while :; do echo x; sleep 0.01; done & exit 0")
            )
            assert (await process.wait()).code == 0
            assert (await read_all(process)).count(b"\0") == 50_000
            await process.kill()

        in_box(backend, scenario)

    def test_a_start_that_is_given_up_leaves_no_process(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            for _ in range(20):
                starting = asyncio.create_task(box.spawn(request("sleep", "1001")))
                await asyncio.wait([starting], timeout=0.0001)
                starting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await (await starting).kill()
            await self.until_asleep(box, 0)

        in_box(backend, scenario)

    def test_a_milder_signal_reaches_the_tree(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            process = await box.spawn(
                request("sh", "-c", "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.01; done")
            )
            await read_until(process, b"up")
            await process.kill(15)
            assert b"bye" in await read_all(process)
            assert (await process.wait()).code == 3

        in_box(backend, scenario)

    def test_a_timeout_kills_the_tree_and_says_so(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            ran = await shell(box, self.SPREAD, limits=ExecLimits(wall_time_s=2))
            assert (ran.status.timed_out, ran.status.signal) == (True, 9)
            assert ran.output == b"up\n"
            await self.until_asleep(box, 0)

        in_box(backend, scenario)

    def test_limits_of_one_command(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            spinning = await shell(box, "while :; do :; done", limits=ExecLimits(cpu_s=1))
            assert spinning.status.signal == 9
            filling = await shell(box, "head -c 100000 /dev/zero > /tmp/big", limits=ExecLimits(file_size_bytes=1000))
            assert filling.status.code != 0
            assert (await shell(box, "stat -c %s /tmp/big")).output == b"1000\n"

        in_box(backend, scenario)


class FileSuite:
    def test_files_are_written_and_read_with_their_modes(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            await shell(box, "echo old > script; chmod 755 script; echo x > gone")
            big = bytes(range(256)) * 12_000
            operations = [
                WriteFile("/workspace/script", b"new\n"),
                WriteFile("/workspace/a/b/c.bin", big),
                WriteFile("/workspace/run", b"#!/bin/sh\n", mode=0o755),
                DeleteFile("/workspace/gone"),
            ]
            await box.apply_files(operations, policy=WORKSPACE_WRITE)
            script = await box.read_file("/workspace/script", policy=ReadOnly(), limit=100)
            assert script is not None
            assert (script.data, script.mode) == (b"new\n", 0o755)
            deep = await box.read_file("/workspace/a/b/c.bin", policy=ReadOnly(), limit=len(big))
            assert deep is not None
            assert (deep.data, deep.mode) == (big, 0o644)
            assert await box.read_file("/workspace/gone", policy=ReadOnly(), limit=100) is None
            assert (await shell(box, "find . -name '*.tmp' | wc -l; ls -l run | cut -c1-10")).output == b"0\n-rwxr-xr-x\n"

        in_box(backend, scenario)

    def test_all_or_nothing(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            await shell(box, "mkdir folder; echo keep > kept; echo keep > doomed")
            before = (await shell(box, "ls -lR --time-style=+ . ; cat kept doomed")).output
            good = [
                WriteFile("/workspace/kept", b"changed"),
                WriteFile("/workspace/new/file", b""),
                DeleteFile("/workspace/doomed"),
            ]
            bad = {
                ErrorCode.NOT_FOUND: DeleteFile("/workspace/absent"),
                ErrorCode.INVALID_REQUEST: WriteFile("/workspace/folder", b""),
                ErrorCode.SANDBOX_REFUSED: WriteFile("/etc/passwd", b""),
            }
            for code, operation in bad.items():
                assert await refused(box.apply_files([*good, operation], policy=WORKSPACE_WRITE)) is code
                assert (await shell(box, "ls -lR --time-style=+ . ; cat kept doomed")).output == before

        in_box(backend, scenario)

    def test_nothing_leads_out_of_the_writable_roots(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            await shell(
                box,
                "mkdir -p /tmp/out; ln -s /tmp/out up; ln -s ../tmp/out/f dots; ln -s /etc/passwd file; ln -s in ok; mkdir in",
            )
            for path in (
                "/workspace/up/f",
                "/workspace/dots",
                "/workspace/file",
                "/workspace/../tmp/f",
                "/etc/f",
                "/workspace/./../x",
            ):
                assert (
                    await refused(box.apply_files([WriteFile(path, b"x")], policy=WORKSPACE_WRITE)) is ErrorCode.SANDBOX_REFUSED
                ), path
            assert (
                await refused(box.apply_files([WriteFile("relative", b"x")], policy=WORKSPACE_WRITE))
                is ErrorCode.INVALID_REQUEST
            )
            assert await refused(box.read_file("/workspace/file", policy=ReadOnly(), limit=9000)) is ErrorCode.SANDBOX_REFUSED
            await box.apply_files([WriteFile("/workspace/ok/f", b"x")], policy=WORKSPACE_WRITE)
            assert (await shell(box, "find /tmp/out in")).output == b"/tmp/out\nin\nin/f\n"

        in_box(backend, scenario)

    def test_a_swapped_in_symlink_is_no_way_out(self, backend: Backend) -> None:
        swap = (
            "import ctypes, os\n"
            "libc = ctypes.CDLL(None)\n"
            "os.makedirs('/tmp/out'); os.mkdir('place'); os.symlink('/tmp/out', 'trap')\n"
            "print('up', flush=True)\n"
            "while True: libc.syscall(316 if os.uname().machine == 'x86_64' else 276, -100, b'place', -100, b'trap', 2)\n"
        )

        async def scenario(box: Sandbox) -> None:
            swapper = await box.spawn(request("python3", "-c", swap))
            await read_until(swapper, b"up")
            done = 0
            for number in range(150):
                with contextlib.suppress(SandboxError):
                    await box.apply_files([WriteFile(f"/workspace/place/{number}", b"x")], policy=WORKSPACE_WRITE)
                    done += 1
            await swapper.kill()
            await swapper.wait()
            assert done > 0
            assert (await shell(box, "ls /tmp/out | wc -l")).output == b"0\n"

        in_box(backend, scenario)

    def test_protected_names_are_not_written(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            await shell(box, "mkdir -p sub; ln -s sub/.git link")
            for path in (
                ".git/hooks/pre-commit",
                "sub/.git/config",
                ".codex/x",
                ".AGENTS/x",
                ".aws/credentials",
                ".patchyard/x",
                "link/x",
            ):
                operation = WriteFile(f"/workspace/{path}", b"x")
                assert await refused(box.apply_files([operation], policy=WORKSPACE_WRITE)) is not ErrorCode.INTERNAL, path
            assert (await shell(box, "find . -type f")).output == b""
            await box.apply_files(
                [WriteFile("/workspace/.github/x.yml", b"x"), WriteFile("/workspace/.gitignore", b"x")], policy=WORKSPACE_WRITE
            )

        in_box(backend, scenario)

    def test_read_refuses_what_is_no_small_regular_file(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            await shell(box, "mkdir folder; mkfifo fifo; head -c 1000 /dev/zero > zeros")
            assert await refused(box.read_file("/workspace/folder", policy=ReadOnly(), limit=10)) is ErrorCode.INVALID_REQUEST
            assert await refused(box.read_file("/workspace/fifo", policy=ReadOnly(), limit=10)) is ErrorCode.INVALID_REQUEST
            assert await refused(box.read_file("/workspace/zeros", policy=ReadOnly(), limit=999)) is ErrorCode.PAYLOAD_TOO_LARGE
            assert await refused(box.read_file("/dev/zero", policy=ReadOnly(), limit=10)) is ErrorCode.INVALID_REQUEST

        in_box(backend, scenario)

    def test_no_space_is_told_and_leaves_nothing(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            too_much = [WriteFile(f"/tmp/big/{number}", bytes(20 << 20)) for number in range(4)]
            assert await refused(box.apply_files(too_much, policy=WORKSPACE_WRITE)) is ErrorCode.DISK_FULL
            assert (await shell(box, "find /tmp -type f; ls -d /tmp/big 2>&1 | grep -c 'No such'")).output == b"1\n"

        in_box(backend, scenario)


class PolicySuite:
    def test_read_only_writes_to_scratch_only(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            ran = await shell(
                box, "cat /etc/hostname >/dev/null && echo s > /tmp/s && echo w > /workspace/w", policy=ReadOnly()
            )
            assert ran.status.code != 0
            assert (await shell(box, "ls /tmp/s /workspace")).output.startswith(b"/tmp/s\n")
            write = [WriteFile("/workspace/w", b"")]
            assert await refused(box.apply_files(write, policy=ReadOnly())) is ErrorCode.SANDBOX_REFUSED
            assert await box.read_file("/workspace/w", policy=ReadOnly(), limit=10) is None

        in_box(backend, scenario)

    def test_full_access_is_still_in_the_box(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            ran = await shell(box, "touch /workspace/a && touch /etc/a", policy=DangerFullAccess())
            assert ran.status.code != 0
            assert (await shell(box, "ls /workspace")).output == b"a\n"

        in_box(backend, scenario)


class EndSuite:
    def test_close_ends_everything_and_twice_is_harmless(self, backend: Backend) -> None:
        async def scenario(box: Sandbox) -> None:
            process = await box.spawn(request("sleep", "1000"))
            await box.close()
            await box.close()
            assert await process.read() == b""
            assert await refused(process.wait()) is ErrorCode.SANDBOX_LOST
            assert await refused(box.spawn(request("true"))) is ErrorCode.SANDBOX_LOST
            await process.kill()

        in_box(backend, scenario)
