"""A home of its own for each test, and the command line as a user types it."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from patchyard.cli.services.identity import ProcessIdentity, identify, read_pid_file
from tests.waiting import PROCESS_S

ROOT = Path(__file__).resolve().parents[3]


class Home:
    """PATCHYARD_HOME and the commands that use it."""

    def __init__(self, root: Path, **env: str) -> None:
        self.root = root
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(root / "user"),
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "ignore",
            "PATCHYARD_HOME": str(root / "h"),
            "PATCHYARD_API_PORT": "0",
            **{key: value for key, value in os.environ.items() if key in ("PYTEST_CURRENT_TEST", "DOCKER_HOST")},
            **env,
        }

    def cli(self, *args: str, code: int | None = 0, stdin: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        """Run `patchyard …` to its end."""
        done = subprocess.run(
            [sys.executable, "-m", "patchyard.cli", *args],
            env={**self.env, **env},
            cwd=self.root,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=PROCESS_S,
        )
        if code is not None:
            assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}\n{self.logs()}"
        return done

    def json(self, *args: str, code: int | None = 0, **env: str) -> Any:
        """Run with --json."""
        return json.loads(self.cli(*args, "--json", code=code, **env).stdout)

    def start(self, *args: str, **env: str) -> "subprocess.Popen[str]":
        """Run `patchyard …` beside the test."""
        return subprocess.Popen(
            [sys.executable, "-m", "patchyard.cli", *args],
            env={**self.env, **env},
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def up(self, *args: str, **env: str) -> str:
        """Start the service without workers; its URL."""
        return str(self.json("up", "--detach", "--workers", "0", *args, **env)["url"])

    def process(self, name: str) -> ProcessIdentity:
        identity = read_pid_file(self.root / "h" / "run" / f"{name}.pid")
        assert identity is not None, name
        return identity

    def supervisor(self) -> ProcessIdentity:
        identity = identify(int((self.root / "h" / "run" / "supervisor.lock").read_text()))
        assert identity is not None
        return identity

    def logs(self) -> str:
        """The end of every log, for a failing test."""
        parts = []
        for log in sorted((self.root / "h" / "logs").glob("*.log")):
            parts.append(f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}")
        return "\n".join(parts)

    def leftovers(self) -> list[str]:
        """Processes that still belong to this home."""
        found = []
        mark = f"PATCHYARD_HOME={self.root / 'h'}".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if int(entry.name) != os.getpid() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        return [command for command in found if command]  # one that is just ending has none any more


@contextlib.contextmanager
def home(**env: str) -> Iterator[Home]:
    """A home that is gone afterwards, with everything that ran in it."""
    root = Path(tempfile.mkdtemp(prefix="pyh"))
    (root / "user").mkdir()
    here = Home(root, **env)
    try:
        yield here
    finally:
        here.cli("down", code=None)
        left = here.leftovers()
        shutil.rmtree(root, ignore_errors=True)
        assert left == []


def kill(identity: ProcessIdentity) -> None:
    os.kill(identity.pid, signal.SIGKILL)


def repository(folder: Path) -> Path:
    """A git repository with one commit."""
    folder.mkdir()
    (folder / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for args in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *args], check=True)
    return folder
