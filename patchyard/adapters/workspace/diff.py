"""The work tree's difference to its base, computed inside the box: the host's git never looks at what an agent has touched."""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from patchyard.agent.ports import ExecLimits, ExitStatus, Sandbox, SandboxExecRequest, SandboxProcess
from patchyard.protocol.policies import SandboxPolicy, WorkspaceWrite

from ._changes import parse_changes
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
_DIFF = "diff --cached --no-color --no-ext-diff --no-textconv --full-index --no-abbrev -z --numstat --binary"
_LISTS_LIMIT = 32 * 1024 * 1024
"""Bytes that the lists of changed paths before the patch may take."""
_STAGING_FAILED = 3


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
    output = await _changes(sandbox, base, policy=policy or WorkspaceWrite(), limit=max_bytes + _LISTS_LIMIT)
    changes = parse_changes(output)
    if len(changes.patch) > max_bytes:
        raise _too_large(max_bytes)
    return Patch(changes.patch, changes.files, changes.insertions, changes.deletions, changes.nested)


def _too_large(max_bytes: int) -> PatchTooLarge:
    return PatchTooLarge(
        f"The changes are larger than {max_bytes:,} bytes. Add build results to .gitignore, then run the task again."
    )


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


def _script(scratch: str, base: str) -> str:
    """One shell for all of it: a process in a box costs more than what these commands do.

    Its output: the nested repositories (`N<path>`, NUL), then the diff's.
    """
    # `cp -p` keeps the index's time: git compares it with the files' times to notice changes within the same second.
    index = f"if [ -f {GIT_DIR}/index ]; then cp -p {GIT_DIR}/index {scratch}/index; else git {_CONFIG} read-tree {base}; fi"
    nested = (
        f"find . -mindepth 2 -name .git -prune -printf 'N%h\\0' -fprintf {scratch}/nested ':(exclude,literal)%h\\0' 2>/dev/null"
    )
    add = f"git {_CONFIG} add --all --pathspec-from-file={scratch}/paths --pathspec-file-nul"
    # What its owner can't read is made readable only when it stands in the way.
    stage = f"{add} || {{ find . ! -type l ! -readable -exec chmod u+rX {{}} \\; ; {add}; }}"
    return (
        f"umask 077; mkdir {scratch} {scratch}/objects || exit {_STAGING_FAILED}; trap 'rm -rf {scratch}' EXIT; "
        f"{nested}; printf '.\\0' | cat - {scratch}/nested > {scratch}/paths; "
        f"if {{ {{ {index}; }} && {{ {stage}; }}; }} > {scratch}/said 2>&1; then "
        f"git {_CONFIG} {_DIFF} {base} -- 2>/dev/null; "
        f"else tail -c 2000 {scratch}/said; exit {_STAGING_FAILED}; fi"
    )


async def _changes(sandbox: Sandbox, base: str, *, policy: SandboxPolicy, limit: int) -> bytes:
    """What the script says about the tree."""
    scratch = f"/tmp/.patchyard-diff-{secrets.token_hex(8)}"  # noqa: S108 - inside the box; `mkdir` refuses an existing one
    argv = ("/bin/sh", "-c", _script(scratch, base))
    result = await run_in_box(sandbox, argv, env=_environment(scratch), policy=policy, limit=limit, timeout_s=_STEP_TIMEOUT_S)
    if result.cut:
        raise _too_large(limit - _LISTS_LIMIT)
    if result.status.code == 0:
        return result.output
    if result.status.code != _STAGING_FAILED:
        raise GitFailed(f"git diff ended with exit code {result.status.code} in the box.")
    said = result.output[-2000:].decode("utf-8", "replace").strip()
    if "No space left on device" in said:
        raise DiskFull("the changes were collected in the box")
    raise GitFailed(f"Collecting the changes in the box failed: {said[-500:]}")


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
