import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from patchyard.adapters.workspace import WorkspaceManager

ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{role}_{part}": "t@t" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")},
}


def git(folder: Path, *args: str) -> str:
    return subprocess.run(["git", *args], cwd=folder, env=ENV, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "app.py").write_text("def add(a, b):\n    return a - b\n")
    (folder / "run.sh").write_text("#!/bin/sh\necho hi\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "AGENTS.md").write_text("Run the tests.\n")
    (folder / "pkg").mkdir()
    (folder / "pkg" / "AGENTS.md").write_text("In pkg.\n")
    (folder / "blob.bin").write_bytes(bytes(range(256)))
    (folder / "dos.txt").write_bytes(b"one\r\ntwo\r\n")
    (folder / ".gitignore").write_text("*.pyc\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "base")
    git(folder, "tag", "-a", "v1.0", "-m", "one")
    git(folder, "branch", "feature/login")
    return folder


@pytest.fixture
def artefacts() -> dict[str, Path]:
    return {}


@pytest.fixture
def open_manager(tmp_path: Path, artefacts: dict[str, Path]) -> Callable[..., WorkspaceManager]:
    async def fetch(tenant_id: str, artefact_id: str, target: Path) -> None:
        shutil.copyfile(artefacts[artefact_id], target)

    def make(*, allow_local: bool = True, worker_id: str = "w1") -> WorkspaceManager:
        manager = WorkspaceManager(tmp_path / "root", worker_id=worker_id, fetch_artefact=fetch, allow_local=allow_local)
        manager.open()
        return manager

    return make
