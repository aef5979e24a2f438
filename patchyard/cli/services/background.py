"""The service in the background: started detached, found again, stopped."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import NamedTuple

from patchyard.cli.errors import AlreadyRunning, CliError, StartFailed
from patchyard.settings import Settings

from .home import ServiceHome, ServiceState, last_lines
from .identity import end_process, identify
from .supervisor import stop_orphans

DEFAULT_WORKERS = 1
"""One process runs up to 200 turns at once; on a machine of its own, one per core is better."""
_START_TIMEOUT_S = 330.0
"""Above the sum of the processes' own limits, so that theirs speak first."""
_STOP_TIMEOUT_S = 60.0


class Ready(NamedTuple):
    """What a detached supervisor tells the command that started it, as one JSON line through a pipe."""

    url: str
    pid: int


def start_detached(settings: Settings, *, workers: int = DEFAULT_WORKERS) -> Ready:
    """Start the service in the background; returns when it is ready. AlreadyRunning, StartFailed."""
    home = ServiceHome(settings.home)
    home.prepare()
    if home.is_locked():
        state = home.state()
        raise AlreadyRunning(home.supervisor_pid(), state.url if state else None, home.root)
    read_end, write_end = os.pipe()
    argv = [sys.executable, "-m", "patchyard.cli.services", "--ready-fd", str(write_end), "--workers", str(workers)]
    log = home.log_file("supervisor")
    with log.open("ab") as output:
        log_start = output.tell()
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(write_end,),
            start_new_session=True,
            env={**os.environ, "PATCHYARD_HOME": str(home.root)},
        )
    os.close(write_end)
    try:
        line = _read_line(read_end, _START_TIMEOUT_S)
    except KeyboardInterrupt:
        process.send_signal(signal.SIGTERM)
        raise
    finally:
        os.close(read_end)
    if line:
        answer = json.loads(line)
        if "url" in answer:
            return Ready(url=answer["url"], pid=answer["pid"])
        _wait_for_end(process)
        raise StartFailed(answer["message"], remedy=answer.get("remedy"), details=answer.get("details"))
    process.send_signal(signal.SIGTERM)
    _wait_for_end(process)
    raise StartFailed(
        f"The service did not start. Log: {log}",
        remedy="Run `patchyard up` in the foreground to watch it, and `patchyard doctor` for what it needs.",
        details=last_lines(log, since=log_start),
    )


def _wait_for_end(process: "subprocess.Popen[bytes]") -> None:
    """A start that failed leaves nothing that still runs when its command returns."""
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _read_line(fd: int, timeout_s: float) -> bytes:
    """One line, or what came before the end of the pipe or of the time."""
    deadline = time.monotonic() + timeout_s
    data = b""
    while not data.endswith(b"\n"):
        readable, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        piece = os.read(fd, 65536) if readable else b""
        if not piece:
            return b""
        data += piece
    return data


def notify_ready(fd: int, state: ServiceState) -> None:
    """Tell the waiting command that all is up."""
    _notify(fd, {"url": state.url, "pid": state.pid})


def notify_failed(fd: int, error: CliError) -> None:
    """Tell the waiting command why nothing came up."""
    _notify(fd, {"message": error.message, "remedy": error.remedy, "details": error.details})


def _notify(fd: int, message: dict[str, str | int | None]) -> None:
    try:
        with os.fdopen(fd, "w") as pipe:
            pipe.write(json.dumps(message) + "\n")
    except OSError:
        # The command that started us is gone; the service goes on without it.
        return


class Stopped(NamedTuple):
    """What `down` found."""

    was_running: bool
    orphans: list[str]


def stop(home: ServiceHome, *, timeout_s: float = _STOP_TIMEOUT_S) -> Stopped:
    """Stop the service of this home and whatever a killed supervisor left behind. Returns when nothing is left."""
    was_running = home.is_locked()
    if was_running:
        _stop_supervisor(home, timeout_s)
    return Stopped(was_running, stop_orphans(home, keep_redis=False) if home.run.is_dir() else [])


def _stop_supervisor(home: ServiceHome, timeout_s: float) -> None:
    pid = home.supervisor_pid()
    identity = identify(pid) if pid is not None else None
    if identity is not None:
        with contextlib.suppress(ProcessLookupError):  # it may end in this very moment
            os.kill(identity.pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    # The lock goes a moment before the process: who stops a service and deletes its folder wants both gone.
    while home.is_locked() or (identity is not None and identify(identity.pid) == identity):
        if time.monotonic() > deadline:
            if identity is None:
                raise CliError(
                    f"The supervisor of {home.root} does not stop and its pid is not known.",
                    remedy=f"Find it with `fuser {home.lock_file}` and end it.",
                )
            end_process(identity, grace_s=1)
            return
        time.sleep(0.05)
