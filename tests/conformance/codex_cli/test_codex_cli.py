"""The real Codex CLI 0.159.2 works with the replay model and keeps every rule that it checks."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchyard.replay import parse_script
from patchyard.testing.replay_model import ReplayModel
from tests.conformance.codex_cli.codex_program import CodexHome, install
from tests.waiting import PROCESS_S

SCRIPT = """
steps:
  - items:
      - reasoning: Look at the folder first.
      - call: exec_command
        arguments: {cmd: "echo from-$((40 + 2))-the-box"}
  - expect: {contains: [from-42-the-box]}
    items:
      - custom: apply_patch
        input: |
          *** Begin Patch
          *** Add File: notes.txt
          +one
          *** End Patch
  - expect: {contains: [notes.txt]}
    items: [{message: "notes.txt was added."}]
"""
pytestmark = [pytest.mark.node, pytest.mark.registry, pytest.mark.timeout(300)]


@pytest.fixture(scope="session")
def codex() -> Path:
    """The program."""
    return install()


@pytest.fixture
def model() -> Iterator[ReplayModel]:
    model = ReplayModel()
    yield model
    model.close()


def run(
    codex: Path, model: ReplayModel, folder: Path, prompt: str, *, sockets: bool = False
) -> subprocess.CompletedProcess[str]:
    home = CodexHome(codex, folder, model.base_url, sockets)
    home.make()
    return subprocess.run(
        home.exec_command(prompt),
        cwd=home.workspace,
        env=home.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
    )


@pytest.mark.parametrize("sockets", [False, True], ids=["sse", "websocket"])
def test_a_command_a_patch_and_an_answer(codex: Path, model: ReplayModel, tmp_path: Path, sockets: bool) -> None:
    model.mount_script(parse_script(SCRIPT))
    done = run(codex, model, tmp_path, "add notes", sockets=sockets)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    messages = [line["item"]["text"] for line in lines if line.get("item", {}).get("type") == "agent_message"]
    assert messages == ["notes.txt was added."]
    assert (tmp_path / "repository" / "notes.txt").read_text() == "one\n"
    assert [entry.outcome for entry in model.requests] == ["completed"] * 3
    assert {entry.wire for entry in model.requests} == {"websocket" if sockets else "sse"}
    # Over a WebSocket it goes on from the last response: one output is all that is new.
    assert [entry.new_items for entry in model.requests[1:]] == ([1, 1] if sockets else [None, None])
    assert model.violations == ()


def test_a_server_error_is_survived(codex: Path, model: ReplayModel, tmp_path: Path) -> None:
    model.mount_script(parse_script("steps: [{error: {status: 500}}, {items: [{message: there}]}]"))
    done = run(codex, model, tmp_path, "say something")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "there" in done.stdout
    assert [entry.status for entry in model.requests] == [500, 200]


def test_a_socket_that_is_cut_is_survived(codex: Path, model: ReplayModel, tmp_path: Path) -> None:
    script = "steps: [{items: [{message: one two three}], cut_after: 4}, {items: [{message: there}]}]"
    model.mount_script(parse_script(script))
    done = run(codex, model, tmp_path, "say something", sockets=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "there" in done.stdout
    assert [(entry.wire, entry.outcome) for entry in model.requests] == [("websocket", "cut"), ("websocket", "completed")]
    assert model.violations == ()
