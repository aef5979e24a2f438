"""The model of the recorded tool holds the three together: recordings, Patchyard, and (with npm) the real program."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from .patch_examples import Example, examples
from .patch_fuzz import ask_patchyard, cache_folder, real_program, run
from .patch_model import ALL, RECORDED, Entry, answer

SCENARIOS = Path(__file__).parents[1] / "fixtures" / "apply_patch"
LINKS = ("145_symlink_update", "146_symlink_delete")
"""The model knows no links."""
NAMES = sorted(path.parent.name for path in SCENARIOS.glob("*/oracle.json") if path.parent.name not in LINKS)


def _files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".keep"}


@pytest.mark.parametrize("name", NAMES)
def test_without_differences_the_model_is_the_recorded_tool(name: str) -> None:
    oracle = json.loads((SCENARIOS / name / "oracle.json").read_text())
    files = {path: Entry(data) for path, data in _files(SCENARIOS / name / "input").items()}
    patch = (SCENARIOS / name / "patch.txt").read_bytes().decode()

    got = answer(patch, files, RECORDED)

    assert got.ok == (oracle["rc"] == 0)
    assert list(got.summary) == oracle["stdout"].splitlines()[1:]
    inside = {path: entry.data for path, entry in got.files.items() if not path.startswith(("..", "$ABS"))}
    assert inside == _files(SCENARIOS / name / "expected")


@settings(max_examples=300, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(examples())
def test_with_all_differences_the_model_is_patchyard(example: Example) -> None:
    assert ask_patchyard(example) == answer(example.patch, example.files, ALL)


@pytest.mark.registry
@pytest.mark.timeout(300)
def test_every_difference_to_the_real_program_is_in_the_table() -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")

    report = run(real_program(cache_folder()), 300, start=0)

    assert report["unexplained"] == 0
    assert report["deliberate"]
