"""The work tree's difference to its base, computed inside the box: the host's git never looks at what an agent has touched."""

import asyncio
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from patchyard.agent.ports import ExecLimits, ExitStatus, Sandbox, SandboxError, SandboxExecRequest, SandboxProcess
from patchyard.protocol.policies import SandboxPolicy, WorkspaceWrite

from .checkout import GIT_DIR, MIRROR, WORKSPACE
from .errors import DiskFull, GitFailed, PatchTooLarge

MAX_PATCH_BYTES = 32 * 1024 * 1024
"""A larger difference is a build artefact by mistake, not a patch that somebody reads."""
_STEP_TIMEOUT_S = 300.0
_CHUNK = 64 * 1024
"""Bytes of stdin a write."""
BOX_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Search path of our own commands in a box; its root file system is read-only."""
_CONFIG = (
    "-c core.hooksPath=/dev/null -c core.fsmonitor=false -c core.untrackedCache=false -c core.attributesFile=/dev/null"
    " -c core.excludesFile=/dev/null -c core.trustctime=false -c core.checkStat=minimal -c core.safecrlf=false"
    " -c core.quotePath=true -c diff.external= -c diff.renames=true -c diff.renameLimit=400 -c diff.algorithm=histogram"
    " -c diff.mnemonicPrefix=false -c diff.noprefix=false -c diff.submodule=short -c index.threads=1"
    " -c advice.addEmbeddedRepo=false"
)
_DIFF = "diff --cached --no-color --no-ext-diff --no-textconv --full-index"


@dataclass(frozen=True)
class Patch:
    """A patch as `git apply --binary` takes it. Empty: the tree equals its base."""

    data: bytes
    files: int
    insertions: int
    deletions: int
    left_out: tuple[str, ...] = ()
    """Repositories inside the work tree that the agent made; a patch can't carry them."""

    @property
    def empty(self) -> bool:
        """Whether nothing changed."""
        return not self.data


@dataclass(frozen=True)
class CommandResult:
    """How a command in a box ended, with its output (both streams, as long as it was within the limit)."""

    status: ExitStatus
    output: bytes
    cut: bool


async def compute_diff(
    sandbox: Sandbox, base: str, *, policy: SandboxPolicy | None = None, max_bytes: int = MAX_PATCH_BYTES
) -> Patch:
    """Text and binary, new and deleted files, modes and links.

    PatchTooLarge, DiskFull, GitFailed; SandboxError when the box is lost.
    """
    scratch = f"/tmp/.patchyard-diff-{secrets.token_hex(8)}"  # noqa: S108 - inside the box; `mkdir` refuses an existing one
    env = _environment(scratch)
    run = _Runner(sandbox, env, policy or WorkspaceWrite())
    try:
        left_out = await _nested_repositories(run)
        await run.must(_stage_script(scratch, base, left_out), "collecting the changes")
        numbers = await run.must(f"git {_CONFIG} {_DIFF} --numstat -z {base} -- 2>/dev/null", "counting the changes")
        patch = await run.shell(f"git {_CONFIG} {_DIFF} --binary {base} -- 2>/dev/null", limit=max_bytes)
        if patch.cut:
            raise PatchTooLarge(
                f"The changes are larger than {max_bytes:,} bytes. Add build results to .gitignore, then run the task again."
            )
        if patch.status.code != 0:
            raise GitFailed(f"git diff ended with exit code {patch.status.code} in the box.")
        return _with_stats(patch.output, numbers.output, left_out)
    finally:
        await _forget(run, scratch)


def _environment(scratch: str) -> dict[str, str]:
    return {
        "PATH": BOX_PATH,
        "HOME": scratch,
        "LC_ALL": "C",
        "GIT_DIR": GIT_DIR,
        "GIT_WORK_TREE": WORKSPACE,
        "GIT_INDEX_FILE": f"{scratch}/index",
        "GIT_OBJECT_DIRECTORY": f"{scratch}/objects",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": f"{GIT_DIR}/objects:{MIRROR}/objects",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_PAGER": "cat",
    }


async def _nested_repositories(run: "_Runner") -> tuple[str, ...]:
    """Folders of the tree, relative to it, that are repositories of their own."""
    found = await run.must(
        "find . -mindepth 2 -name .git -prune -print0 2>/dev/null || true", "looking for nested repositories"
    )
    names = [path.decode("utf-8", "surrogateescape") for path in found.output.split(b"\0") if path]
    return tuple(name.removeprefix("./").removesuffix("/.git") for name in names)


def _stage_script(scratch: str, base: str, nested: Sequence[str]) -> str:
    left_out = " ".join(shlex.quote(f":(exclude,literal){name}") for name in nested)
    add = f"git {_CONFIG} add --all -- . {left_out}"
    # `cp -p` keeps the index's time: git compares it with the files' times to notice changes within the same second.
    # What its owner can't read is made readable only when it stands in the way.
    return (
        f"set -e; umask 077; mkdir {scratch}; mkdir {scratch}/objects; "
        f"if [ -f {GIT_DIR}/index ]; then cp -p {GIT_DIR}/index {scratch}/index; else git {_CONFIG} read-tree {base}; fi; "
        f"{add} || {{ find . ! -type l ! -readable -exec chmod u+rX {{}} \\; ; {add}; }}"
    )


def _with_stats(data: bytes, numbers: bytes, left_out: tuple[str, ...]) -> Patch:
    files = insertions = deletions = 0
    fields = iter(numbers.split(b"\0"))
    for entry in fields:
        if not entry:
            continue
        added, removed, path = entry.split(b"\t", 2)
        if not path:  # a rename: old and new name follow
            next(fields, None)
            next(fields, None)
        files += 1
        insertions += 0 if added == b"-" else int(added)
        deletions += 0 if removed == b"-" else int(removed)
    return Patch(data, files, insertions, deletions, left_out)


async def _forget(run: "_Runner", scratch: str) -> None:
    try:
        await run.shell(f"rm -rf {scratch}")
    except SandboxError:
        pass  # the box is gone, and its scratch space with it


class _Runner:
    def __init__(self, sandbox: Sandbox, env: Mapping[str, str], policy: SandboxPolicy) -> None:
        self._sandbox = sandbox
        self._env = env
        self._policy = policy

    async def shell(self, script: str, *, limit: int = 1 << 20) -> CommandResult:
        return await run_in_box(
            self._sandbox, ("/bin/sh", "-c", script), env=self._env, policy=self._policy, limit=limit, timeout_s=_STEP_TIMEOUT_S
        )

    async def must(self, script: str, what: str) -> CommandResult:
        result = await self.shell(script, limit=64 << 20)
        if result.status.code == 0 and not result.cut:
            return result
        said = result.output[-2000:].decode("utf-8", "replace").strip()
        if "No space left on device" in said:
            raise DiskFull(f"{what} in the box")
        raise GitFailed(f"{what.capitalize()} in the box failed (exit code {result.status.code}): {said[-500:]}")


async def run_in_box(
    sandbox: Sandbox,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    policy: SandboxPolicy,
    stdin: bytes | None = None,
    limit: int = 1 << 20,
    timeout_s: float | None = None,
) -> CommandResult:
    """Run a command of ours in the box. Output beyond `limit` bytes ends it. SandboxError when the box is lost."""
    process = await sandbox.spawn(
        SandboxExecRequest(argv=tuple(argv), cwd=WORKSPACE, env=env, policy=policy, limits=ExecLimits(wall_time_s=timeout_s))
    )
    feeding = asyncio.ensure_future(_feed(process, stdin)) if stdin is not None else None
    try:
        return await _collect(process, limit)
    except BaseException:
        await process.kill()
        raise
    finally:
        if feeding is not None:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)


async def _collect(process: SandboxProcess, limit: int) -> CommandResult:
    chunks: list[bytes] = []
    size = 0
    while chunk := await process.read():
        size += len(chunk)
        if size > limit:
            await process.kill()
            return CommandResult(await process.wait(), b"".join(chunks), cut=True)
        chunks.append(chunk)
    return CommandResult(await process.wait(), b"".join(chunks), cut=False)


async def _feed(process: SandboxProcess, data: bytes) -> None:
    """Beside the reading: a command that answers while it still reads would block both sides otherwise."""
    for start in range(0, len(data), _CHUNK):
        await process.write(data[start : start + _CHUNK])
    await process.write(b"", eof=True)
