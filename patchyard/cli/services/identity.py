"""Pid files that can't be fooled by a reused pid: each holds the pid and when that process started."""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple


class ProcessIdentity(NamedTuple):
    """A process, told apart from a later one with the same pid."""

    pid: int
    started: str


def identify(pid: int) -> ProcessIdentity | None:
    """The process with this pid now; None: there is none, or it is only a zombie."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.parent.parent.joinpath("self").exists():
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] == "Z" else ProcessIdentity(pid, fields[19])
    shown = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = shown.stdout.strip().partition(" ")
    return None if shown.returncode or state.startswith("Z") else ProcessIdentity(pid, started.strip())


def write_pid_file(path: Path, pid: int) -> None:
    """Remember a process that was just started."""
    identity = identify(pid)
    if identity is not None:
        path.write_text(f"{identity.pid} {identity.started}\n")


def read_pid_file(path: Path) -> ProcessIdentity | None:
    """The process that the file names, if that very one still lives."""
    try:
        pid, _, started = path.read_text().strip().partition(" ")
    except OSError:
        return None
    if not pid.isdigit():
        return None
    living = identify(int(pid))
    return living if living is not None and living.started == started else None


def end_process(identity: ProcessIdentity, *, grace_s: float) -> None:
    """TERM, then KILL after `grace_s`, to a process (and its group) that is not our child. Returns when it is gone."""
    _signal(identity.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while identify(identity.pid) == identity:
        if time.monotonic() > deadline:
            _signal(identity.pid, signal.SIGKILL)
            deadline = time.monotonic() + grace_s
        time.sleep(0.05)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        if number == signal.SIGKILL and os.getpgid(pid) == pid:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
    except ProcessLookupError:
        return
