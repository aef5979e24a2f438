"""The suite of released bugs: its parts fit together, and no script says more than it did."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from patchyard.replay import load_script
from patchyard.replay.player import Names, perform
from patchyard.replay.script import CallStep, CustomStep, MessageStep

SUITE = Path(__file__).parents[3] / "bench" / "suites" / "released_bugs"
BUGS: list[dict[str, Any]] = yaml.safe_load((SUITE / "suite.yaml").read_text())["bugs"]
RECORDED = {bug["id"]: bug for bug in json.loads((SUITE / "bugs.json").read_text())["candidates"]}
TOOLS = {"exec_command", "write_stdin", "update_plan"}


def test_every_recorded_bug_is_in_the_suite() -> None:
    assert [bug["id"] for bug in BUGS if bug["id"] in RECORDED] == [bug["id"] for bug in BUGS]
    assert {bug["id"] for bug in BUGS} == set(RECORDED)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug["id"])
def test_a_script_looks_reproduces_patches_tests_and_answers(bug: dict[str, Any]) -> None:
    steps = load_script(SUITE / bug["script"]).steps
    items = [item for step in steps for item in step.items]
    assert {item.call for item in items if isinstance(item, CallStep)} <= TOOLS
    assert [item.custom for item in items if isinstance(item, CustomStep)] == ["apply_patch"]
    assert isinstance(items[-1], MessageStep)
    assert "Verified:" in items[-1].message
    assert any(" passed" in text for text in steps[-1].expect.contains) or bug["id"].startswith("zipp")


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug["id"])
def test_the_suite_agrees_with_the_recording(bug: dict[str, Any]) -> None:
    recorded = RECORDED[bug["id"]]
    assert (bug["package"], bug["buggy"], bug["fixed"]) == (recorded["package"], recorded["buggy"], recorded["fixed"])
    for test in recorded["fail_to_pass"]:
        assert test in bug["verify"]
    copied = " ".join(recorded["commands"]["hidden_tests"])
    for overlay in bug["overlay"]:
        assert f"new/{overlay['from']} old/{overlay['to']}" in copied


def test_the_demo_is_pleasant_and_short() -> None:
    (bug,) = [bug for bug in BUGS if bug.get("demo")]
    steps = load_script(SUITE / bug["script"]).steps
    frames = [
        frame for step in steps for frame in perform(step, Names("x", 0), model="m", input_tokens=1, cached_tokens=0).frames
    ]
    assert 0.5 < sum(frame.delay_s for frame in frames) < 3
