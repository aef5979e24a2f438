"""One child of the supervisor: started, watched, started again after a crash, stopped."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from patchyard.cli.errors import StartFailed

from .home import ServiceHome, last_lines
from .identity import write_pid_file

ReadyProbe = Callable[["ManagedProcess"], Awaitable[bool]]

_FIRST_RESTART_S = 0.5
_LONGEST_RESTART_S = 30.0
_STABLE_S = 60.0
"""A child that ran for so long starts its restarts from the shortest pause again."""
_PROBE_EVERY_S = 0.1
_DOES_NOT_START = " does not start: "
"""How API and workers begin their reason in the log."""


@dataclass(frozen=True)
class ProcessSpec:
    """How one process is started and judged."""

    name: str
    argv: Sequence[str]
    ready: ReadyProbe
    remedy: str
    """What to do when it does not start."""
    env: Mapping[str, str] = field(default_factory=dict)
    pass_fds: tuple[int, ...] = ()
    start_timeout_s: float = 30
    stop_timeout_s: float = 15
    stop_signal: signal.Signals = signal.SIGTERM


class ManagedProcess:
    """A child with its log and pid file. Each is the leader of its own session, so that only the supervisor hears Ctrl-C."""

    def __init__(self, spec: ProcessSpec, home: ServiceHome) -> None:
        self.spec = spec
        self._home = home
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._changing = asyncio.Lock()
        """Held while it is started again or stopped, so that no child appears behind a stop."""
        self._log_start = 0
        self._started_at = 0.0

    @property
    def pid(self) -> int | None:
        """Pid of the running child."""
        return self._process.pid if self._process and self._process.returncode is None else None

    @property
    def age_s(self) -> float:
        """Seconds since it was last started."""
        return time.monotonic() - self._started_at

    def log_text(self) -> str:
        """Everything that it wrote since it was last started, as far as it is recent."""
        return last_lines(self._home.log_file(self.spec.name), 1000, since=self._log_start)

    def log_tail(self) -> str:
        """What it wrote since it was last started."""
        return last_lines(self._home.log_file(self.spec.name), since=self._log_start)

    async def start(self) -> None:
        """Start it; returns at once."""
        log = self._home.log_file(self.spec.name)
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._log_start = os.fstat(handle).st_size
            self._process = await asyncio.create_subprocess_exec(
                *self.spec.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=handle,
                stderr=handle,
                env={**os.environ, **self.spec.env},
                cwd=self._home.root,
                pass_fds=self.spec.pass_fds,
                start_new_session=True,
            )
        except OSError as error:
            raise StartFailed(f"{self.spec.name} can't be started: {error}.", remedy=self.spec.remedy) from error
        finally:
            os.close(handle)
        self._started_at = time.monotonic()
        write_pid_file(self._home.run / f"{self.spec.name}.pid", self._process.pid)

    async def wait_ready(self) -> None:
        """Wait until it does its work. StartFailed with the end of its log when it ends or takes too long."""
        deadline = time.monotonic() + self.spec.start_timeout_s
        while not await self.spec.ready(self):
            if self._process is None or self._process.returncode is not None:
                code = None if self._process is None else self._process.returncode
                raise self._failure(f"ended with exit code {code} while starting")
            if time.monotonic() > deadline:
                raise self._failure(f"did not become ready within {self.spec.start_timeout_s:.0f} s")
            await asyncio.sleep(_PROBE_EVERY_S)

    def _failure(self, what: str) -> StartFailed:
        log = self._home.log_file(self.spec.name)
        reason = _stated_reason(self.log_text())
        if reason is not None:
            return StartFailed(f"{self.spec.name} does not start: {reason}", remedy=f"{self.spec.remedy} Log: {log}")
        reason = _stated_reason(self.log_text())
        if reason is not None:
            return StartFailed(f"{self.spec.name}: {reason}", remedy=f"If that is not enough, see {log}.")
        return StartFailed(f"{self.spec.name} {what}. Log: {log}", remedy=self.spec.remedy, details=self.log_tail())

    async def keep_running(self) -> None:
        """Start it again after each crash, with growing pauses, until `stop`."""
        pause = _FIRST_RESTART_S
        while self._process is not None:
            code = await self._process.wait()
            if self._stopping.is_set():
                return
            if time.monotonic() - self._started_at > _STABLE_S:
                pause = _FIRST_RESTART_S
            last = last_lines(self._home.log_file(self.spec.name), 1, since=self._log_start)
            said = f" It said last: {_message(last)[:300]}" if last else ""
            report(f"{self.spec.name} ended with exit code {code}; it is started again in {pause:.1f} s.{said}")
            try:
                await asyncio.wait_for(self._stopping.wait(), pause)
                return
            except TimeoutError:
                pause = min(pause * 2, _LONGEST_RESTART_S)
            await self._restart()

    async def _restart(self) -> None:
        async with self._changing:
            if self._stopping.is_set():
                return
            try:
                await self.start()
            except StartFailed as error:
                report(f"{error.message} {error.remedy or ''}")

    async def stop(self) -> None:
        """End it: its stop signal, then KILL for its whole group. Harmless when it does not run."""
        self._stopping.set()
        async with self._changing:
            await self._end()

    async def _end(self) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            process.send_signal(self.spec.stop_signal)
            try:
                await asyncio.wait_for(process.wait(), self.spec.stop_timeout_s)
            except TimeoutError:
                report(f"{self.spec.name} did not stop within {self.spec.stop_timeout_s:.0f} s and is killed.")
        if process is not None:
            _kill_group(process.pid)
            await process.wait()
        (self._home.run / f"{self.spec.name}.pid").unlink(missing_ok=True)


def _stated_reason(log: str) -> str | None:
    """What a process said last about why it does not start; None: it did not say so in these words."""
    for line in reversed(log.splitlines()):
        _, said, reason = _message(line).partition(_DOES_NOT_START)
        if said:
            return reason.strip()
    return None


def _message(line: str) -> str:
    """The text of a line that may be a JSON record."""
    try:
        record = json.loads(line)
    except ValueError:
        return line
    return str(record.get("message", "")) if isinstance(record, dict) else line


def _kill_group(pid: int) -> None:
    """Also what the child started and left behind: the group id is its pid, it led its own session."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def report(text: str) -> None:
    """One line of the supervisor: on the terminal, or in its log when detached."""
    print(f"{time.strftime('%H:%M:%S')} patchyard: {text}", file=sys.stderr, flush=True)
