"""Eight real bugs of released packages as tasks: fetch, make a repository, run `patchyard fix` on it.

The agent's repository is the buggy release's source. The fixed release's tests are the overlay of the verification only.
"""

import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

SUITE = Path(__file__).resolve().parent / "suites/released_bugs"


@dataclass(frozen=True)
class Bug:
    """One bug of the suite (suite.yaml)."""

    id: str
    package: str
    buggy: str
    fixed: str
    instruction: str
    setup: str | None
    verify: str
    overlay: tuple[tuple[str, str], ...]
    """(path in the fixed release, path in the tree) of its tests."""

    @property
    def script(self) -> Path:
        """The replay script that fixes it."""
        return SUITE / f"{self.id}.yaml"


def bugs() -> list[Bug]:
    """The suite; the demo's bug first."""
    return [_bug(row) for row in yaml.safe_load((SUITE / "suite.yaml").read_text())["bugs"]]


def _bug(row: dict[str, Any]) -> Bug:
    names = ("id", "package", "buggy", "fixed", "instruction", "setup", "verify")
    return Bug(**{name: row[name] for name in names}, overlay=tuple((entry["from"], entry["to"]) for entry in row["overlay"]))


def prepare(bug: Bug, cache: Path) -> tuple[Path, Path]:
    """(git repository of the buggy release, tar of the fixed release's tests); fetched once, then from the cache."""
    home = cache / bug.id
    repository, overlay = home / "repository", home / "tests.tar"
    if not (home / "done").exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        old = _sdist(bug.package, bug.buggy, home)
        new = _sdist(bug.package, bug.fixed, home)
        old.rename(repository)
        _commit(repository, f"{bug.package} {bug.buggy}")
        with tarfile.open(overlay, "w") as tar:
            for source, target in bug.overlay:
                tar.add(new / source, arcname=target)
        shutil.rmtree(new)
        (home / "done").touch()
    return repository, overlay


def _sdist(package: str, version: str, home: Path) -> Path:
    target = home / version
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-binary",
        ":all:",
    ]
    run = subprocess.run([*command, "--dest", str(target / "sdist"), f"{package}=={version}"], capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(
            f"error: could not fetch {package} {version}: {run.stderr.strip()[-300:]}\nIs the package registry reachable?"
        )
    with tarfile.open(next((target / "sdist").glob("*.tar.gz"))) as tar:
        tar.extractall(target / "tree", filter="data")
    return next((target / "tree").iterdir())


def _commit(repository: Path, message: str) -> None:
    """One commit with a fixed date, so that every machine gets the same id."""
    git = ["git", "-C", str(repository), "-c", "user.name=Patchyard demo", "-c", "user.email=demo@localhost"]
    date = {
        "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
        "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
    }
    subprocess.run([*git, "init", "--quiet", "--initial-branch", "main"], check=True)
    subprocess.run([*git, "add", "--all", "--force"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", message], check=True, env=date)
