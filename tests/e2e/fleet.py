"""The product as its users run it: `patchyard up` with a worker, the engine, the replay model, and the command line."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchyard.replay import Script
from patchyard.testing.replay_model import ReplayModel
from tests.e2e.service import image
from tests.integration.cli.service import Home, home

MODEL_KEY = "key-of-the-replay-model-0123456789"


@dataclass
class Fleet:
    """One service of a test module, and what is known of it."""

    home: Home
    model: ReplayModel

    @property
    def root(self) -> Path:
        """PATCHYARD_HOME."""
        return Path(self.home.env["PATCHYARD_HOME"])

    def fix(self, repository: Path | str, case: str, *args: str, **env: str) -> "Run":
        """`patchyard fix … --json`; `case` picks the thread of the script."""
        words = ["fix", str(repository), "--issue", f"case {case}. add() subtracts", *args, "--json"]
        return Run.of(self.home.cli(*words, code=None, **env))

    def text(self, repository: Path | str, case: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        """`patchyard fix …` as a person sees it in a pipe."""
        return self.home.cli("fix", str(repository), "--issue", f"case {case}. add() subtracts", *args, code=None, **env)

    def containers(self) -> list[str]:
        """Containers whose work tree lies in this home."""
        listed = docker("ps", "-aq", "--filter", "label=patchyard.kind")
        mounts = [docker("inspect", "-f", "{{json .Mounts}}", name) for name in listed.split()]
        return [mount for mount in mounts if str(self.root) in mount]

    def residue(self) -> list[str]:
        """What a task must not leave: work trees, and temporary files of stores and mirrors."""
        workspaces = self.root / "workspaces"
        left = [path for folder in ("checkouts", "trash", "incoming") for path in (workspaces / folder).glob("*")]
        left += [path for path in self.root.rglob("*.tmp") if path.is_file()]
        return [str(path.relative_to(self.root)) for path in left]


@dataclass
class Run:
    """How a `fix --json` went."""

    code: int
    stderr: str
    events: list[dict[str, Any]]
    task: dict[str, Any] | None

    @classmethod
    def of(cls, done: subprocess.CompletedProcess[str]) -> "Run":
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        task = next((line["task"] for line in lines if line.get("type") == "task"), None)
        return cls(done.returncode, done.stderr, [line for line in lines if "msg" in line], task)

    @property
    def error(self) -> Mapping[str, Any]:
        """The task's error."""
        assert self.task is not None, self.stderr
        return dict(self.task["error"] or {})

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        """Messages of one type."""
        return [event["msg"] for event in self.events if event["msg"]["type"] == kind]


def docker(*args: str) -> str:
    """Ask the engine; the answer, or nothing when what was asked about is gone."""
    return subprocess.run(["docker", *args], capture_output=True, text=True, check=False).stdout


@contextmanager
def fleet(script: Mapping[str, Any], *, workers: int = 1, **env: str) -> Iterator[Fleet]:
    """A service that is up; gone afterwards, with everything that ran in it."""
    model = ReplayModel()
    model.mount_script(Script.model_validate(script))
    settings = {
        "PATCHYARD_MODEL_BASE_URL": model.base_url,
        "PATCHYARD_MODEL_API_KEY": MODEL_KEY,
        "PATCHYARD_SANDBOX_IMAGE": image(),
    }
    try:
        with home(**settings | env) as here:
            here.cli("up", "--detach", "--workers", str(workers))
            yield Fleet(here, model)
    finally:
        model.close(check=False)
