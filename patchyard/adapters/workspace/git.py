"""Runs git on the host: for mirrors and untouched checkouts only, never in a folder that an agent has had its hands on."""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import DiskFull, GitFailed, from_os_error

OUTPUT_LIMIT = 64 * 1024 * 1024
"""Bytes of output that are kept: a reference list of a million entries fits."""

_SAFE_CONFIG = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "credential.helper=",
    "gc.auto=0",  # boxes borrow objects from mirrors: nothing may be pruned under them
    "maintenance.auto=false",
    "fetch.writeCommitGraph=false",
    "fetch.recurseSubmodules=false",
    "submodule.recurse=false",
    "protocol.allow=never",
    "advice.detachedHead=false",
    "transfer.fsckObjects=false",
)


@dataclass(frozen=True)
class GitResult:
    """How a git command ended."""

    code: int
    stdout: bytes
    stderr: str


class Git:
    """Git with an environment of its own: no user or system configuration, no prompt, no hook, no filter.

    `config_file` is a file of ours that is used as the only configuration when a folder of the local user is read.
    """

    def __init__(self, *, config_file: Path) -> None:
        self._config_file = config_file

    def environment(self, protocols: Sequence[str], *, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The variables of a git process that may use these protocols only."""
        env = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": "/nonexistent",
            "LC_ALL": "C",
            "GIT_CONFIG_GLOBAL": str(self._config_file) if "file" in protocols else os.devnull,
            "GIT_CONFIG_SYSTEM": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "/bin/false",
            "GIT_LFS_SKIP_SMUDGE": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_ALLOW_PROTOCOL": ":".join(protocols),
            "GIT_SSH_COMMAND": "ssh -oBatchMode=yes -oConnectTimeout=15",
        }
        for name in ("SSH_AUTH_SOCK", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_FILE", "GIT_SSL_CAINFO"):
            if name in os.environ:
                env[name] = os.environ[name]
        if "ssh" in protocols:
            env["HOME"] = os.environ.get("HOME", "/nonexistent")  # ssh looks for its keys and known hosts there
        env.update(extra or {})
        return env

    async def run(
        self,
        *args: str,
        protocols: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout_s: float = 120,
    ) -> GitResult:
        """Run it and return how it ended, whatever the exit code. DiskFull; GitFailed when it does not start or is too slow."""
        argv = ["git"]
        for setting in _SAFE_CONFIG:
            argv += ["-c", setting]
        for protocol in protocols:
            argv += ["-c", f"protocol.{protocol}.allow=always"]
        argv += args
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE if stdin is not None else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self.environment(protocols, extra=env),
                start_new_session=True,
                umask=0o022,  # boxes read the mirror's objects as another user
                limit=1 << 20,
            )
        except FileNotFoundError as error:
            raise GitFailed("Git is not installed on the worker. Install git 2.34 or newer.") from error
        except OSError as error:
            raise from_os_error(error, "starting git") from error
        try:
            async with asyncio.timeout(timeout_s):
                out, err = await process.communicate(stdin)
        except TimeoutError as error:
            raise GitFailed(f"git {_verb(args)} took longer than {timeout_s:.0f} s and was stopped.") from error
        finally:
            await _end(process)
        stderr = err[:OUTPUT_LIMIT].decode("utf-8", "replace").strip()
        if process.returncode != 0 and ("No space left on device" in stderr or "Disk quota exceeded" in stderr):
            raise DiskFull(f"git {_verb(args)} ran")
        return GitResult(process.returncode or 0, out, stderr)

    async def text(
        self, *args: str, protocols: Sequence[str] = (), env: Mapping[str, str] | None = None, stdin: bytes | None = None
    ) -> str:
        """The output of a command that has to work. GitFailed otherwise."""
        result = await self.run(*args, protocols=protocols, env=env, stdin=stdin)
        if result.code != 0:
            raise GitFailed(f"git {_verb(args)} failed: {last_line(result.stderr)}")
        return result.stdout.decode("utf-8", "replace")


def last_line(stderr: str) -> str:
    """The line of git's complaint that tells most."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith(("fatal:", "error:"))]
    return (fatal or lines or ["no message"])[0][:500]


def _verb(args: Sequence[str]) -> str:
    return next((arg for arg in args if not arg.startswith("-")), "")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the whole group of a command that was broken off; git leaves helpers behind otherwise."""
    if process.returncode is not None:
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    await process.wait()
