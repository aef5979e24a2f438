"""Runs last in this folder: nothing of this test run is left in the engine."""

import subprocess

import pytest

from tests.waiting import WAIT_S

from .conftest import DOCKER_HOST, WORKER

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("kind", [("ps", "-a"), ("volume", "ls"), ("network", "ls")])
def test_nothing_is_left(kind: tuple[str, str]) -> None:
    command = ["docker", "-H", DOCKER_HOST, *kind, "--format", "{{.Labels}}", "--filter", "label=patchyard.worker"]
    listed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=WAIT_S).stdout
    assert [line for line in listed.splitlines() if WORKER in line] == []
