"""The command against 112 recorded answers of the real tool: equal, or different exactly as `deliberate.json` says."""

import json
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from patchyard.cli.apply_patch import apply_patch

SCENARIOS = Path(__file__).parents[2] / "fixtures" / "apply_patch"
DELIBERATE: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "deliberate.json").read_text())
NAMES = sorted(path.parent.name for path in SCENARIOS.glob("*/oracle.json"))
LINKS = {"145_symlink_update": "link.txt", "146_symlink_delete": "link.txt"}
"""Files that were symbolic links when recorded; the fixture holds the target as text."""
HEADER = "Success. Updated the following files:\n"


@dataclass(frozen=True)
class Outcome:
    """What can be seen from outside after the command ran."""

    exit_code: int
    summary: tuple[str, ...]
    files: dict[str, bytes]


def files_below(folder: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.name != ".keep" and (path.is_symlink() or path.is_file()):
            content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
            found[path.relative_to(folder).as_posix()] = content
    return found


def summary_lines(stdout: str) -> tuple[str, ...]:
    lines = stdout.removeprefix(HEADER).splitlines()
    return tuple(line for line in lines if not line.startswith("Note: "))


def recorded(name: str) -> Outcome:
    oracle = json.loads((SCENARIOS / name / "oracle.json").read_text())
    return Outcome(oracle["rc"], summary_lines(oracle["stdout"]), files_below(SCENARIOS / name / "expected"))


def run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Outcome, dict[str, str], str]:
    """The outcome, the files' modes, and what was printed."""
    oracle = json.loads((SCENARIOS / name / "oracle.json").read_text())
    work = tmp_path / "work"
    shutil.copytree(SCENARIOS / name / "input", work, symlinks=True)
    if name in LINKS:
        link = work / LINKS[name]
        target = link.read_text()
        link.unlink()
        link.symlink_to(target)
    for path in work.rglob("*"):
        if not path.is_symlink() and not path.is_dir():
            path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)  # whatever the checkout made of them
    outside = str(tmp_path / "outside")
    patch = (SCENARIOS / name / "patch.txt").read_bytes().decode().replace("$ABS", outside)
    monkeypatch.chdir(work)
    result = CliRunner().invoke(apply_patch, [patch] if oracle["mode"] == "arg" else [], input=patch.encode())
    modes = {path: oct((work / path).lstat().st_mode) for path in files_below(work)}
    outcome = Outcome(result.exit_code, summary_lines(result.stdout.replace(outside, "$ABS")), files_below(work))
    assert {path.name for path in tmp_path.iterdir()} == {"work"}, "something was written outside of the folder"
    return outcome, modes, result.stderr.replace(outside, "$ABS")


def test_all_scenarios_are_here() -> None:
    assert len(NAMES) == 112
    assert set(DELIBERATE) <= set(NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in DELIBERATE])
def test_equal_to_the_recording(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, modes, _ = run(name, tmp_path, monkeypatch)

    assert outcome == recorded(name)
    oracle = json.loads((SCENARIOS / name / "oracle.json").read_text())
    for path, mode in oracle.get("file_modes", {}).items():
        if not stat.S_ISLNK(int(modes[path], 8)):
            assert modes[path] == mode, path


@pytest.mark.parametrize("name", sorted(DELIBERATE))
def test_different_as_decided(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decided = DELIBERATE[name]
    expected = Outcome(
        decided["exit_code"], tuple(decided["summary"]), {path: text.encode() for path, text in decided["files"].items()}
    )

    outcome, _, _ = run(name, tmp_path, monkeypatch)

    assert outcome == expected
    if decided["case"] != "path_refused":
        assert expected != recorded(name), "listed as different, but it equals the recording"
    else:
        assert expected.exit_code != recorded(name).exit_code


@pytest.mark.parametrize("name", [name for name in NAMES if recorded(name).exit_code == 1])
def test_refusals_name_no_path_of_the_host(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, _, stderr = run(name, tmp_path, monkeypatch)

    if outcome.exit_code:
        assert str(tmp_path) not in stderr
        assert stderr.endswith(".\n") or " | " in stderr.splitlines()[-1]
