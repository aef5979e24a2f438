"""What tests may leave behind: servers, workers and boxes. `run_tests.py` compares before and after."""

import json
import subprocess
from pathlib import Path

MARKS = ("redis-server", "valkey-server", "bin/postgres", "uvicorn", "celery", "-m api", "patchyard.replay", "patchyard.cli up")


def _boxes() -> set[str]:
    command = ["docker", "ps", "-a", "--filter", "label=patchyard.kind", "--format", "{{json .}}"]
    run = subprocess.run(command, capture_output=True, text=True)
    return {f"container {row['Names']} ({row['Image']})" for row in map(json.loads, run.stdout.splitlines())}


def _servers() -> set[str]:
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
        if any(mark in command for mark in MARKS):
            found.add(f"process {entry.name}: {command[:140]}")
    return found


def present() -> set[str]:
    """Everything of that kind that is there now."""
    return _boxes() | _servers()
