"""One hook's command in the box: JSON in, output and error output apart, within its time."""

import asyncio
import contextlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from patchyard.agent.approvals import first_of
from patchyard.agent.ports import Clock, ExecLimits, Sandbox, SandboxError, SandboxExecRequest, SandboxProcess
from patchyard.agent.tools.output import OutputBuffer
from patchyard.protocol.policies import SandboxPolicy

SPLIT_SCRIPT = (
    'exec 3>&1; e=$(bash -c "$1" 2>&1 1>&3 3>&-); c=$?; ((${#e} > 32768)) && e="${e:0:16384}…${e: -16384}"; '
    'printf "\\n%s%s" "$0" "$e"; exit $c'
)
"""A process has one output stream here. This runs $1 and prints its error output last, behind the mark $0, which must not be
cut off: what is too long of it is left out in the middle."""

_OUTPUT_BYTES = 512 * 1024
"""Of one hook; more is cut in the middle, which makes a JSON answer unreadable and so a failure."""
_KILL_S = 2.0


@dataclass(frozen=True)
class HookRun:
    """How a hook's command ended."""

    code: int | None
    """None: it did not start, or was stopped."""
    stdout: str = ""
    stderr: str = ""
    timed_out: bool = False
    error: str | None = None
    """Why it did not run."""


@dataclass(frozen=True)
class HookCommand:
    """What runs, and how."""

    script: str
    cwd: str
    env: Mapping[str, str]
    policy: SandboxPolicy
    timeout_s: float


async def run_hook(box: Sandbox, command: HookCommand, stdin: bytes, clock: Clock) -> HookRun:
    """Run it to its end or its time limit. Its processes are gone when this returns or is cancelled."""
    mark = f"--{secrets.token_hex(12)}--"
    request = SandboxExecRequest(
        argv=("bash", "-c", SPLIT_SCRIPT, mark, command.script),
        cwd=command.cwd,
        env=command.env,
        policy=command.policy,
        limits=ExecLimits(wall_time_s=command.timeout_s + _KILL_S),
    )
    try:
        process = await box.spawn(request)
    except SandboxError as error:
        return HookRun(None, error=error.info.message)
    output = OutputBuffer(_OUTPUT_BYTES)
    following = asyncio.create_task(_follow(process, stdin, output))
    try:
        await first_of(asyncio.wait([following]), clock.sleep(command.timeout_s))
        if not following.done():
            return HookRun(None, timed_out=True)
        code = following.result()
    except SandboxError as error:
        return HookRun(None, error=error.info.message)
    finally:
        if not following.done():
            following.cancel()
            await first_of(_kill(process), clock.sleep(_KILL_S))
    captured = output.take()
    text = (captured.head + captured.tail).decode("utf-8", "replace").replace("\0", "")
    stdout, _, stderr = text.rpartition(f"\n{mark}") if mark in text else (text, "", "")
    return HookRun(code, stdout.strip(), stderr.strip())


async def _follow(process: SandboxProcess, stdin: bytes, output: OutputBuffer) -> int:
    feeding = asyncio.create_task(_feed(process, stdin))
    try:
        await asyncio.sleep(0)  # the input is on its way before the output can end
        while data := await process.read():
            output.add(data)
        return (await process.wait()).code
    finally:
        feeding.cancel()
        await asyncio.wait([feeding])


async def _feed(process: SandboxProcess, stdin: bytes) -> None:
    with contextlib.suppress(SandboxError):  # it may end without reading
        await process.write(stdin, eof=True)


async def _kill(process: SandboxProcess) -> None:
    with contextlib.suppress(SandboxError):
        await process.kill()
