"""Fails when a process or a container of the tests is still there."""

import json
import os
import subprocess
import sys
from pathlib import Path

MARKS = ("redis-server", "valkey-server", "initdb", "postgres", "uvicorn", "celery", "patchyard.replay")


def _containers() -> list[str]:
    run = subprocess.run(
        ["docker", "ps", "-a", "--filter", "label=patchyard.kind", "--format", "{{json .}}"], capture_output=True, text=True
    )
    return [f"container {json.loads(line)['Names']} ({json.loads(line)['Image']})" for line in run.stdout.splitlines()]


def _processes() -> list[str]:
    """Servers whose parent is gone: nobody will stop them."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if b"PYTEST_CURRENT_TEST=" in environment and any(mark in command for mark in MARKS) and int(entry.name) != os.getpid():
            found.append(f"process {entry.name}: {command[:120]}")
    return found


def main() -> int:
    """0 when nothing is left."""
    left = _containers() + _processes()
    for line in left:
        print(f"left behind: {line}")
    print("nothing left behind" if not left else f"{len(left)} left behind: find the test that made them and stop them there")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
