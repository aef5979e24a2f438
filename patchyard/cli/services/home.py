"""PATCHYARD_HOME as the supervisor uses it: paths, token, lock, and what runs at the moment."""

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from patchyard.cli.errors import AlreadyRunning, StartFailed

_MIN_FREE_BYTES = 256 * 1024 * 1024
"""Below this the queue's journal and the first container would soon stop; better to say so before the start."""
_MAX_SOCKET_PATH = 103
"""Bytes that a unix socket's path may have on every system (104 with the final NUL on macOS)."""
_LOG_ROTATE_BYTES = 10 * 1024 * 1024


class ServiceState(BaseModel):
    """<home>/run/service.json: written when everything is up."""

    model_config = ConfigDict(frozen=True)

    pid: int
    url: str
    version: str
    workers: int
    redis: str
    """started, attached or external."""
    started_at: int


@dataclass(frozen=True)
class ServiceHome:
    """The folder that holds all of one service."""

    root: Path

    @property
    def run(self) -> Path:
        """Pid files, lock and state."""
        return self.root / "run"

    @property
    def logs(self) -> Path:
        """One log per process."""
        return self.root / "logs"

    @property
    def redis_dir(self) -> Path:
        """Journal and configuration of the embedded Redis."""
        return self.root / "redis"

    @property
    def redis_socket(self) -> Path:
        """Where the embedded Redis listens."""
        return self.root / "redis.sock"

    @property
    def token_file(self) -> Path:
        """The local user's bearer token."""
        return self.root / "token"

    @property
    def lock_file(self) -> Path:
        """Locked by the supervisor as long as it lives; holds its pid."""
        return self.run / "supervisor.lock"

    @property
    def state_file(self) -> Path:
        """See ServiceState."""
        return self.run / "service.json"

    def log_file(self, name: str) -> Path:
        """Log of one process."""
        return self.logs / f"{name}.log"

    def prepare(self) -> None:
        """Create what is missing, readable by the owner only. StartFailed: not writable, too little space, path too long."""
        if len(os.fsencode(self.redis_socket)) > _MAX_SOCKET_PATH:
            raise StartFailed(
                f"The path of the Redis socket is too long for a unix socket: {self.redis_socket}",
                remedy=f"Set PATCHYARD_HOME to a folder with a shorter path (socket path up to {_MAX_SOCKET_PATH} bytes).",
            )
        try:
            for folder in (self.root, self.run, self.logs, self.redis_dir):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            free = shutil.disk_usage(self.root).free
            if free < _MIN_FREE_BYTES:
                raise StartFailed(
                    f"The disk of {self.root} is full: {free // 2**20} MiB are free, {_MIN_FREE_BYTES // 2**20} MiB are needed.",
                    remedy="Free some space, or set PATCHYARD_HOME to a folder on another disk.",
                )
            self._ensure_token()
        except OSError as error:
            raise StartFailed(
                f"{self.root} can't be used: {error.strerror or error}.",
                remedy="Make it writable, or set PATCHYARD_HOME to another folder.",
            ) from error

    def _ensure_token(self) -> None:
        try:
            handle = os.open(self.token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            if self.token_file.stat().st_mode & 0o077:
                self.token_file.chmod(0o600)
            return
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the one supervisor of this home. AlreadyRunning. The kernel drops the lock however the process ends."""
        handle = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                state = self.state()
                raise AlreadyRunning(self.supervisor_pid(), state.url if state else None, self.root) from None
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            self.state_file.unlink(missing_ok=True)
            yield
            self.state_file.unlink(missing_ok=True)
            os.ftruncate(handle, 0)
        finally:
            os.close(handle)

    def is_locked(self) -> bool:
        """Whether a supervisor lives."""
        try:
            handle = os.open(self.lock_file, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def supervisor_pid(self) -> int | None:
        """Pid of the supervisor that holds the lock."""
        try:
            text = self.lock_file.read_text().strip()
        except OSError:
            return None
        return int(text) if text.isdigit() else None

    def state(self) -> ServiceState | None:
        """What the running supervisor wrote; None before it is ready."""
        try:
            return ServiceState.model_validate_json(self.state_file.read_bytes())
        except (OSError, ValidationError):
            return None

    def write_state(self, state: ServiceState) -> None:
        """Publish the state, whole or not at all."""
        temporary = self.state_file.with_suffix(".tmp")
        temporary.write_text(state.model_dump_json(indent=1) + "\n")
        temporary.replace(self.state_file)

    def rotate_logs(self) -> None:
        """Keep one older generation of each log that has grown large."""
        for log in self.logs.glob("*.log"):
            if log.stat().st_size > _LOG_ROTATE_BYTES:
                log.replace(log.with_suffix(".log.1"))


def last_lines(path: Path, count: int = 12, *, since: int = 0) -> str:
    """The end of a log, from byte `since` on; empty when there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(since, size - 65536))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-count:])
