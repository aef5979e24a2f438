"""The real Codex CLI and Patchyard's agent play the same scripts; what each sends to the model differs only where it is listed."""

import os
from collections.abc import Iterator

import pytest

from tests.conformance.codex_cli.cases import load_cases
from tests.conformance.codex_cli.codex_program import install
from tests.conformance.codex_cli.differences import Difference, compare, load, rewrite
from tests.conformance.codex_cli.runner import Runner
from tests.e2e.service import image

CASES = load_cases()
REWRITE = os.environ.get("PATCHYARD_REWRITE_DIFFERENCES") == "1"

pytestmark = [pytest.mark.node, pytest.mark.registry, pytest.mark.engine, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """Plays the selected scripts."""
    chosen = [
        CASES[item.callspec.params["name"]]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path and hasattr(item, "callspec")
    ]
    with Runner(chosen, program=install(), image=image(), folder=tmp_path_factory.mktemp("scripts")) as runner:
        yield runner


@pytest.fixture(scope="module")
def found() -> Iterator[dict[str, list[Difference]]]:
    """What this run found; becomes the golden list when that is asked for."""
    found: dict[str, list[Difference]] = {}
    yield found
    if REWRITE:
        rewrite(found, load(), list(CASES))


@pytest.mark.parametrize("name", CASES)
def test_only_listed_differences(name: str, runner: Runner, found: dict[str, list[Difference]]) -> None:
    pair = runner.result(name)
    found[name] = compare(CASES[name], pair.codex, pair.patchyard)
    if REWRITE:
        return
    listed = {difference.key for difference in load().get(name, [])}
    seen = {difference.key for difference in found[name]}
    assert not seen - listed, "a difference that differences.yaml does not list"
    assert not listed - seen, "a difference that differences.yaml lists is gone"


def test_every_difference_has_a_reason_and_a_script() -> None:
    listed = load()
    assert set(listed) <= set(CASES)
    assert [(name, d.where) for name, entries in listed.items() for d in entries if not d.reason.strip()] == []


def test_there_are_enough_scripts() -> None:
    assert len(CASES) >= 25
