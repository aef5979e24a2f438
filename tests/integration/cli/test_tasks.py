"""Submitting, watching and cancelling against a real service whose workers are off: tasks stay queued."""

import asyncio
import hashlib
import io
import json
import signal
import tarfile
from pathlib import Path

import pytest

from patchyard.adapters.catalog import Catalog
from patchyard.settings import Settings
from tests.integration.cli.service import Home, repository
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]


def test_a_folder_becomes_a_task_on_its_repository(running: Home) -> None:
    repo = repository(running.root / "repo")
    (repo / "calc.py").write_text("changed\n")
    done = running.cli("fix", str(repo / "."), "--issue", "add() subtracts", "--verify", "pytest -q", "--detach")
    task_id = done.stdout.strip()
    assert "Uncommitted changes are not part of the task" in done.stderr
    task = running.json("tasks", "show", task_id)
    assert task["spec"]["repository"] == {"type": "git", "url": str(repo)}
    assert task["spec"]["instruction_untrusted"] is True
    assert (task["spec"]["approval"], task["spec"]["sandbox"]["type"]) == ("on-request", "workspace-write")
    assert task["spec"]["verify"]["command"] == "pytest -q"
    shown = running.cli("tasks", "show", task_id).stdout
    assert "add() subtracts" in shown
    listed = running.cli("tasks", "list", "--search", "subtracts").stdout
    assert task_id in listed


def test_the_overlay_is_uploaded_and_must_be_an_archive(running: Home) -> None:
    archive = running.root / "tests.tar"
    with tarfile.open(archive, "w") as tar:
        info = tarfile.TarInfo("tests/test_x.py")
        info.size = 5
        tar.addfile(info, io.BytesIO(b"x = 1"))
    common = ["fix", ".", "--issue", "x", "--verify", "true", "--detach", "--verify-overlay"]
    task_id = running.cli(*common, str(archive)).stdout.strip()
    assert running.json("tasks", "show", task_id)["spec"]["verify"]["overlay_artefact_id"]
    plain = running.root / "plain.txt"
    plain.write_text("text")
    assert "is not a tar archive" in running.cli(*common, str(plain), code=2).stderr
    assert "There is no file" in running.cli(*common, "nowhere.tar", code=2).stderr


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["fix", "/no/such/folder", "--issue", "x"], "There is no folder /no/such/folder"),
        (["fix", ".", "--issue", "  "], "--issue is empty"),
        (["fix", ".", "--issue", "@/no/such/file"], "can't be read"),
        (["fix", "."], "Missing option '--issue'"),
        (["fix", ".", "--issue", "x", "--verify-overlay", "y"], "--verify-overlay needs --verify"),
        (["fix", ".", "--issue", "x", "--output", "no/such/folder/p"], "does not exist"),
        (["fix", ".", "--issue", "x", "--sandbox", "none"], "Invalid value for '--sandbox'"),
        (["fix", "file:///etc", "--issue", "x"], "can't be used"),
        (["exec", "  "], "The prompt is empty"),
        (["frobnicate"], "No such command"),
    ],
)
def test_a_wrong_command_line_gets_one_clear_message(running: Home, args: list[str], text: str) -> None:
    done = running.cli(*args, code=None)
    assert done.returncode == (1 if "can't be used" in text else 2)
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_text_comes_from_a_file_or_from_stdin_only_when_asked(running: Home) -> None:
    issue = running.root / "issue.md"
    issue.write_text("# From a file\n\nmore\n")
    by_file = running.cli("fix", ".", "--issue", f"@{issue}", "--detach").stdout.strip()
    assert running.json("tasks", "show", by_file)["title"] == "From a file"
    by_stdin = running.cli("fix", ".", "--issue", "-", "--detach", stdin="From stdin").stdout.strip()
    assert running.json("tasks", "show", by_stdin)["title"] == "From stdin"
    prompt = running.cli("exec", "--no-repo", "--detach", stdin="A question").stdout.strip()
    task = running.json("tasks", "show", prompt)
    assert task["title"] == "A question"
    assert (task["spec"]["approval"], task["spec"]["sandbox"]["type"]) == ("never", "read-only")
    assert task["spec"]["repository"]["type"] == "none"


def test_an_interrupted_watcher_cancels_its_task(running: Home) -> None:
    process = running.start("fix", ".", "--issue", "wait for me")
    assert process.stdout is not None
    task_id = process.stdout.readline().split()[1]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert f"patchyard tasks show {task_id}" in err
    assert "interrupted" in out
    assert running.json("tasks", "show", task_id)["status"] == "cancelled"
    tailed = running.cli("tail", task_id, "--json").stdout.splitlines()
    assert [json.loads(line)["msg"]["type"] for line in tailed][-1] == "turn_interrupted"
    ordinals = [json.loads(line)["ordinal"] for line in tailed]
    rest = running.cli("tail", task_id, "--json", "--after", str(ordinals[0])).stdout.splitlines()
    assert [json.loads(line)["ordinal"] for line in rest] == ordinals[1:]
    records = running.cli("rollout", "cat", task_id).stdout.splitlines()
    assert [json.loads(line)["ordinal"] for line in records] == list(range(len(records)))
    assert "task" in running.cli("trace", task_id).stdout
    assert running.json("trace", task_id)["task_id"] == task_id


def test_leaving_tail_leaves_the_task(running: Home) -> None:
    task_id = running.cli("exec", "x", "--no-repo", "--detach").stdout.strip()
    process = running.start("tail", task_id)
    assert process.stderr is not None
    assert "the task goes on" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert running.json("tasks", "show", task_id)["status"] == "queued"


def test_unknown_things_are_not_found(running: Home) -> None:
    for args in (["tasks", "show", "nope"], ["tasks", "cancel", "nope"], ["tail", "nope"], ["rollout", "cat", "nope"]):
        done = running.cli(*args, code=1)
        assert "There is no task 'nope'" in done.stderr
        assert "patchyard tasks list" in done.stderr
        assert "Ctrl-C" not in done.stderr
    task_id = running.cli("exec", "x", "--no-repo", "--detach").stdout.strip()
    assert "has no patch" in running.cli("tasks", "patch", task_id, code=1).stderr
    running.cli("tasks", "cancel", task_id)
    assert "No turn waits" in running.cli("tasks", "answer", task_id, "q", "accept", code=1).stdout


def test_a_caller_from_elsewhere_sends_a_copy(running: Home) -> None:
    """A token that is not the machine's own may name no local paths: the repository travels as a bundle, a folder as a tar."""
    token = "a-token-for-somebody-else"

    async def add_token() -> None:
        catalog = Catalog(Settings(home=Path(running.env["PATCHYARD_HOME"])).effective_catalog_url)
        await catalog.create_token("default", "elsewhere", hashlib.sha256(token.encode()).hexdigest())
        await catalog.close()

    asyncio.run(add_token())
    repo = repository(running.root / "elsewhere")
    done = running.cli("fix", str(repo), "--issue", "x", "--detach", PATCHYARD_TOKEN=token)
    assert "uploading the repository as a git bundle" in done.stderr
    source = running.json("tasks", "show", done.stdout.strip())["spec"]["repository"]
    assert (source["type"], source["format"]) == ("archive", "bundle")
    plain = running.root / "plain"
    plain.mkdir()
    (plain / "a.txt").write_text("a")
    done = running.cli("fix", str(plain), "--issue", "x", "--detach", PATCHYARD_TOKEN=token)
    assert running.json("tasks", "show", done.stdout.strip())["spec"]["repository"]["format"] == "tar"


def test_a_wrong_token_says_where_the_right_one_is(running: Home) -> None:
    done = running.cli("tasks", "list", code=1, PATCHYARD_TOKEN="wrong")
    assert "unknown or was revoked" in done.stderr
    assert "PATCHYARD_TOKEN" in done.stderr


def test_output_that_nobody_reads_to_the_end_is_no_error(running: Home) -> None:
    process = running.start("tasks", "list", "--json")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    errors = process.stderr.read()
    process.wait(timeout=WAIT_S)
    assert "Traceback" not in errors
    process.stderr.close()


def test_folder_is_private(running: Home) -> None:
    root = Path(running.env["PATCHYARD_HOME"])
    assert (root.stat().st_mode & 0o077, (root / "token").stat().st_mode & 0o077) == (0, 0)
