"""The real Codex CLI 0.159.2 works with the replay model and keeps every rule that it checks."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchyard.replay import parse_script
from patchyard.testing.replay_model import ReplayModel

VERSION = "0.159.2"
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
CONFIG = """
model = "gpt-5.5"
model_provider = "replay"
[model_providers.replay]
name = "replay"
base_url = "{base_url}"
env_key = "REPLAY_KEY"
wire_api = "responses"
supports_websockets = {sockets}
[features]
plugins = false
apps = false
remote_plugin = false
plugin_sharing = false
"""

pytestmark = [pytest.mark.node, pytest.mark.registry, pytest.mark.timeout(300)]


@pytest.fixture(scope="session")
def codex() -> Path:
    """The CLI's start file, installed once per machine into a cache outside the repository."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("npm and node are not on the PATH")
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "patchyard-tests" / f"codex-{VERSION}"
    start = home / "node_modules" / "@openai" / "codex" / "bin" / "codex.js"
    if not start.is_file():
        home.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=home.parent))
        command = [npm, "install", "--prefix", str(fresh), "--no-audit", "--no-fund", f"@openai/codex@{VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        if done.returncode != 0:
            shutil.rmtree(fresh)
            pytest.skip(f"@openai/codex@{VERSION} can't be installed: {done.stderr[-300:]}")
        try:
            fresh.rename(home)
        except OSError:
            # Another run was faster.
            shutil.rmtree(fresh)
    return start


@pytest.fixture
def model() -> Iterator[ReplayModel]:
    model = ReplayModel()
    yield model
    model.close()


def run(
    codex: Path, model: ReplayModel, folder: Path, prompt: str, *, sockets: bool = False
) -> subprocess.CompletedProcess[str]:
    home, repository, tools = folder / "home", folder / "repository", folder / "bin"
    for path in (home, repository, tools):
        path.mkdir(parents=True)
    (home / "config.toml").write_text(CONFIG.format(base_url=model.base_url, sockets=str(sockets).lower()))
    # A CODEX_HOME below the temporary folder gets no helper aliases: the sandbox helper must be found on the PATH instead.
    native = next(path for path in (codex.parents[2]).glob("codex-*/vendor/*/**/codex") if path.is_file())
    (tools / "codex-linux-sandbox").symlink_to(native)
    environment = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "HOME": str(folder),
        "CODEX_HOME": str(home),
        "REPLAY_KEY": "any",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "127.0.0.1",
    }
    options = ["exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return subprocess.run(
        ["node", str(codex), *options, prompt],
        cwd=repository,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
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
