"""What a hostile command can't do in a box, and what its owner is told."""

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from patchyard.adapters.sandbox import BoxMount, BoxRefused
from patchyard.agent.ports import ExecLimits, SandboxError, WriteFile
from patchyard.protocol.policies import DangerFullAccess, ReadOnly, WorkspaceWrite
from tests.conformance.sandbox_suite import read_until, refused, request, run, shell
from tests.waiting import WAIT_S

from .conftest import DockerBackend

pytestmark = pytest.mark.engine

ABUSE = Path(__file__).with_name("abuse.py").read_text()


def test_the_abuse_list_is_refused_and_ordinary_things_work(backend: DockerBackend) -> None:
    async def scenario() -> None:
        async with backend.open() as box:
            ran = await run(box, "python3", "-c", ABUSE)
            assert ran.status.code == 0, ran.output.decode()
            abuse, fine = json.loads(ran.output)
            assert {name: answer for name, answer in abuse.items() if answer == "ok"} == {}
            assert set(fine.values()) <= {"ok", "0"}, fine

    asyncio.run(scenario())


def test_full_access_still_lacks_what_the_container_lacks(backend: DockerBackend) -> None:
    per_command = {"kill_init", "kill_supervisor", "raw", "netlink_audit"}

    async def scenario() -> None:
        async with backend.open(policy=DangerFullAccess()) as box:
            script = ABUSE.replace("os.kill(1, 9)", "os.kill(1, 0)").replace(
                "os.kill(os.getppid(), 9)", "os.kill(os.getppid(), 0)"
            )
            abuse, _ = json.loads((await run(box, "python3", "-c", script, policy=DangerFullAccess())).output)
            assert {name for name, answer in abuse.items() if answer == "ok"} <= per_command

    asyncio.run(scenario())


def test_a_killed_supervisor_takes_its_tree_along(backend: DockerBackend) -> None:
    async def scenario() -> None:
        async with backend.open(policy=DangerFullAccess()) as box:
            script = "read go; setsid sleep 1002 & kill -9 $PPID; sleep 1002"
            process = await box.spawn(request("sh", "-c", script, policy=DangerFullAccess()))
            await process.write(b"go\n")  # its begin was told by now
            assert (await process.wait()).signal == 9
            async with asyncio.timeout(WAIT_S):
                while (await shell(box, "pgrep -fxc 'sleep 1002'; true")).output != b"0\n":
                    pass

    asyncio.run(scenario())


def test_a_fork_bomb_and_a_memory_bomb_end_alone(backend: DockerBackend) -> None:
    async def scenario() -> None:
        async with backend.open(pids=128) as box:
            bomb = await box.spawn(
                request("sh", "-c", "echo up; b() { b | b & }; b; wait; sleep 100", limits=ExecLimits(wall_time_s=20))
            )
            await read_until(bomb, b"up")
            await bomb.kill()
            await bomb.wait()
            await until_alive(box)
            hog = await run(box, "python3", "-c", "x = bytearray(1 << 30)")
            assert (hog.status.oom_killed, hog.status.code) == (True, 137)
            await until_alive(box)

    async def until_alive(box: object) -> None:
        async with asyncio.timeout(WAIT_S):
            while not await alive(box):
                pass

    async def alive(box: object) -> bool:
        try:
            return (await run(box, "true")).status.code == 0  # type: ignore[arg-type]
        except SandboxError:
            return False

    asyncio.run(scenario())


def test_memory_stays_flat_under_a_flood(backend: DockerBackend) -> None:
    """100 MB are read slowly: neither side keeps more than the window."""

    def resident() -> int:
        fields = Path("/proc/self/status").read_text().split("VmRSS:")[1].split()
        return int(fields[0])

    async def scenario() -> None:
        async with backend.open() as box:
            flood = await box.spawn(request("head", "-c", str(100 << 20), "/dev/zero"))
            before, most, total = resident(), 0, 0
            while chunk := await flood.read():
                total += len(chunk)
                if total % 5 == 0:
                    await run(box, "true")
                most = max(most, resident())
            assert total == 100 << 20
            assert most - before < 16_000
            boxd = await shell(box, "awk '/VmRSS/ {print $2}' /proc/1/status")
            assert int(boxd.output) < 16_000

    asyncio.run(scenario())


def test_protected_names_are_mounted_over(backend: DockerBackend) -> None:
    workspace = backend.workspace
    for folder in (".git/hooks", "vendor/sub/.git", "src"):
        (workspace / folder).mkdir(parents=True)
    for path in [workspace, *workspace.rglob("*")]:
        if os.getuid() == 0:
            os.chown(path, 1000, 1000)

    async def scenario() -> None:
        async with backend.open() as box:
            for attack in (
                "touch .git/hooks/pre-commit",
                "rm -rf .git",
                "mv .git moved",
                "ln -sfn /tmp .git",
                "touch vendor/sub/.git/config",
                "mv vendor/sub/.git x",
                "mkdir -p .codex/x",
                "touch .agents/x",
                "rmdir .aws",
                "mv .patchyard y",
            ):
                assert (await shell(box, attack)).status.code != 0, attack
            assert (await shell(box, "touch src/a vendor/b new")).status.code == 0
            write = [WriteFile("/workspace/vendor/sub/.git/config", b"x")]
            await refused(box.apply_files(write, policy=WorkspaceWrite()))

    asyncio.run(scenario())
    assert list((workspace / ".git/hooks").iterdir()) == []


def test_a_git_that_is_a_symlink_is_refused_and_other_links_are_told(backend: DockerBackend) -> None:
    (backend.workspace / ".agents").symlink_to("elsewhere")

    async def told() -> None:
        async with backend.open() as box:
            assert box.unprotected == (".agents",)

    asyncio.run(told())
    (backend.workspace / "sub").mkdir()
    (backend.workspace / "sub/.git").symlink_to("/etc")

    async def not_started() -> None:
        with pytest.raises(BoxRefused):
            async with backend.open():
                pass

    asyncio.run(not_started())


def test_the_git_directory_that_a_git_file_names_is_read_only(backend: DockerBackend, tmp_path: Path) -> None:
    gitdir = tmp_path / "gitdir"
    gitdir.mkdir()
    gitdir.chmod(0o777)
    (backend.workspace / ".git").write_text("gitdir: /gitdir\n")
    backend.spec = replace(backend.spec, mounts=(*backend.spec.mounts, BoxMount(gitdir, "/gitdir")))

    async def scenario() -> None:
        async with backend.open() as box:
            ran = await shell(box, "echo 'gitdir: /tmp' > .git || touch /gitdir/config")
            assert ran.output.count(b"Read-only file system") == 2

    asyncio.run(scenario())


def test_a_read_only_box_has_read_only_mounts(backend: DockerBackend) -> None:
    async def scenario() -> None:
        async with backend.open(policy=ReadOnly()) as box:
            ran = await shell(box, "touch /workspace/x", policy=DangerFullAccess())
            assert b"Read-only file system" in ran.output

    asyncio.run(scenario())


def test_a_box_tells_what_confines_it(backend: DockerBackend) -> None:
    async def scenario() -> None:
        async with backend.open() as box:
            found = box.confinement
            assert found.missing(user=backend.spec.user, network="none", read_only_root=True) == ()
            assert found.missing(user="0:0", network="none", read_only_root=True) == (
                f"its user is {backend.spec.user} instead of 0:0",
            )
        # A spec that asks for a network gets one; one that asks for none must not have one.
        async with backend.open(network="bridge") as box:
            problems = box.confinement.missing(user=backend.spec.user, network="none", read_only_root=True)
            assert problems == ("it has a network",)

    asyncio.run(scenario())
