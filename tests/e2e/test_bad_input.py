"""Whatever users get wrong, and whatever is missing on their machine: one message with a code and a remedy, nothing left over."""

import io
import json
import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.fleet import Fleet, fleet
from tests.e2e.repositories import FIX, VERIFY, buggy_repository, git
from tests.e2e.screen import terminal
from tests.e2e.test_patch import call, patch, say
from tests.integration.cli.disks import fill, small_disk
from tests.waiting import PROCESS_S, wait_for

pytestmark = [pytest.mark.engine, pytest.mark.redis, pytest.mark.timeout(300)]

OFF_BY_ONE = FIX.replace("return a - b", "return a / b")
FORCED = "rm -f calc.py.orig && echo removed"


def failing(**error: Any) -> dict[str, Any]:
    return {"error": error}


FULL = tuple(f"{case}{when}" for case in ("full-store", "full-workspaces") for when in ("", "-after"))
CASES: dict[str, list[dict[str, Any]]] = {
    "plain": [patch(FIX), say("Fixed.")],
    "again": [patch(FIX), say("Fixed.")],
    "unread": [say("never said")],
    "wrong-patch": [patch(OFF_BY_ONE), patch(FIX), say("Fixed.")],
    "broken-arguments": [{"items": [{"call": "exec_command", "arguments": '{"cmd": '}]}, patch(FIX), say("Fixed.")],
    "unknown-tool": [{"items": [{"call": "launch_missiles", "arguments": {}}]}, patch(FIX), say("Fixed.")],
    "unauthorized": [failing(status=401, code="invalid_api_key", message="Incorrect API key provided")],
    "quota": [failing(status=429, code="insufficient_quota", message="You exceeded your quota")],
    "limited": [
        failing(status=429, code="rate_limit_exceeded", message="slow down", retry_after=0.3),
        patch(FIX),
        say("Done."),
    ],
    "overloaded": [{**failing(status=500, message="boom"), "times": 20}],
    "proxy-page": [{**failing(status=502, message="x", body="<html><h1>Bad gateway</h1></html>"), "times": 20}],
    "short": [call("ls")],
    **{case: [patch(FIX), say("Fixed.")] for case in FULL},
    "asks": [call(FORCED), patch(FIX), say("Done.")],
    "asks-in-pipe": [call(FORCED), patch(FIX), say("Done.")],
}
SCRIPT = {"threads": [{"match": {"contains": f"case {name}."}, "steps": steps} for name, steps in CASES.items()]}


@pytest.fixture(scope="module")
def service() -> Iterator[Fleet]:
    with fleet(SCRIPT, PATCHYARD_MODEL_REQUEST_RETRIES="1", PATCHYARD_MODEL_STREAM_RETRIES="1") as running:
        yield running


@pytest.fixture(scope="module")
def repository(service: Fleet) -> Path:
    folder = service.home.root / "bug"
    folder.mkdir()
    return buggy_repository(folder)


@dataclass(frozen=True)
class Wrong:
    """A mistake, and what must be said about it."""

    case: str
    code: str
    """Of the task's error."""
    words: tuple[str, ...]
    """Of its message: what was wrong, and the remedy."""
    args: tuple[str, ...] = ()
    exit: int = 1
    source: str = "repository"
    violations: int = field(default=0)
    """Requests that the script refuses."""


TABLE = [
    Wrong("unread", "revision_not_found", ("mian", "Did you mean: main?"), ("--base", "mian")),
    Wrong("unread", "repository_not_found", ("can't be reached", "Check host"), source="https://127.0.0.1:1/x.git"),
    Wrong("unread", "repository_not_found", ("not a git repository", "git init"), source="plain"),
    Wrong("unread", "revision_not_found", ("no commit yet", "Commit something"), source="without-commits"),
    Wrong("unread", "setup_failed", ("no-luck", "exit"), ("--setup", "echo no-luck; exit 7")),
    Wrong("plain", "verify_tool_missing", ("no-such-tool", "--setup"), ("--verify", "no-such-tool -q")),
    Wrong("unauthorized", "model_unauthorized", ("401", "PATCHYARD_MODEL_API_KEY")),
    Wrong("quota", "model_quota_exceeded", ("quota",)),
    Wrong("overloaded", "model_overloaded", ("500", "Try again")),
    Wrong("proxy-page", "model_overloaded", ("502",)),
    Wrong("short", "model_bad_request", ("no further step", "add a step"), violations=1),
]


@pytest.mark.parametrize("wrong", TABLE, ids=lambda wrong: f"{wrong.code}-{wrong.case}-{wrong.source[:9]}")
def test_what_can_not_be_done_ends_with_one_message(service: Fleet, repository: Path, wrong: Wrong) -> None:
    before = len(service.model.violations)
    done = service.fix(_source(service, repository, wrong.source), wrong.case, *wrong.args)
    assert done.code == wrong.exit, done.stderr
    assert done.error.get("code") == wrong.code, done.error
    for word in wrong.words:
        assert word in done.error["message"] + "".join(e["output_tail"] for e in done.of_type("setup_completed")), done.error
    assert "Traceback" not in done.error["message"]
    assert str(service.root) not in done.error["message"]
    assert [event["status"] for event in done.of_type("task_status_changed")][-1] == "failed"
    ends = [event for kind in ("turn_completed", "turn_failed", "turn_interrupted") for event in done.of_type(kind)]
    assert len(ends) == 1
    assert len(service.model.violations) - before == wrong.violations
    _nothing_left(service)


def _source(service: Fleet, repository: Path, name: str) -> str:
    if name == "repository":
        return str(repository)
    if "://" in name:
        return name
    folder = service.home.root / name
    folder.mkdir(exist_ok=True)
    if name == "plain":
        (folder / "a.txt").write_text("a")
    else:
        git(folder, "init", "-q", "-b", "main")
    return str(folder)


def _nothing_left(service: Fleet) -> None:
    """The engine removes containers, and the trash is emptied, on their own time."""
    wait_for(lambda: service.containers() + service.residue() == [], "nothing is left")


@pytest.mark.parametrize(
    ("case", "told"),
    [("wrong-patch", "calc.py"), ("broken-arguments", "JSON"), ("unknown-tool", "unsupported call"), ("limited", "")],
)
def test_the_agent_reads_the_error_and_goes_on(service: Fleet, repository: Path, case: str, told: str) -> None:
    done = service.fix(repository, case, "--verify", VERIFY)
    assert (done.code, (done.task or {})["verified"]) == (0, True), done.stderr
    requests = [entry for entry in service.model.requests if entry.body and f"case {case}." in json.dumps(entry.body)]
    outputs = [str(item.get("output")) for item in requests[-1].input if str(item.get("type")).endswith("_output")]
    if told:
        assert told in outputs[0]
        assert "Traceback" not in outputs[0]
    _nothing_left(service)


def test_what_can_not_be_laid_over_base_and_patch_is_not_verified(service: Fleet, repository: Path) -> None:
    archive = service.home.root / "overlay.tar"
    with tarfile.open(archive, "w") as tar:
        info = tarfile.TarInfo("../outside.py")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    done = service.fix(repository, "again", "--verify", VERIFY, "--verify-overlay", str(archive))
    assert done.task is not None
    assert (done.task["status"], done.task["verified"]) == ("failed", False), done.error
    assert "../outside.py" in done.error["message"]
    assert (done.code, done.error["code"]) == (4, "verification_failed")
    assert done.task["patch"]["files"] == 1, "the work is kept"
    _nothing_left(service)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize(("part", "case"), [("objects", "full-store"), ("workspaces", "full-workspaces")])
def test_a_full_disk_ends_the_task_with_the_remedy_and_the_next_one_works(
    service: Fleet, repository: Path, part: str, case: str
) -> None:
    folder = service.root / part
    with small_disk(folder, mib=4) as disk:
        for below in ("mirrors", "checkouts", "trash"):
            (disk / below).mkdir()
        fill(disk)
        done = service.fix(repository, case, "--verify", VERIFY)
        assert (done.code, done.error["code"]) == (1, "disk_full"), done.error
        assert "No space left" in done.error["message"]
        assert "Free" in done.error["message"]
    done = service.fix(repository, f"{case}-after", "--verify", VERIFY)
    assert done.code == 0, done.error
    _nothing_left(service)


@pytest.mark.parametrize(
    ("setting", "value", "code", "remedy"),
    [
        ("PATCHYARD_DOCKER_HOST", "unix:///nonexistent/docker.sock", "engine_unavailable", "PATCHYARD_DOCKER_HOST"),
        ("PATCHYARD_SANDBOX_IMAGE", "patchyard/no-such-image:1", "image_missing", "sandbox_images/build.py"),
    ],
)
def test_a_machine_without_engine_or_image(tmp_path: Path, setting: str, value: str, code: str, remedy: str) -> None:
    steps = [call("ls"), say("Done.")]
    with fleet({"steps": steps}, **{setting: value}) as service:
        done = service.fix(buggy_repository(tmp_path), "any")
        assert (done.code, done.error["code"]) == (1, code)
        assert remedy in done.error["message"]
        failed = [check for check in service.home.json("doctor", code=1)["checks"] if check["status"] == "failed"]
        assert failed
        assert all(check["remedy"] for check in failed)
        wait_for(lambda: service.residue() == [], "no folder is left")


def test_each_message_is_shown_once(service: Fleet, repository: Path) -> None:
    done = service.text(repository, "unread", "--base", "mian")
    assert done.returncode == 1
    assert (done.stdout + done.stderr).count("has no commit, tag or branch") == 1


def test_a_question_in_a_pipe_comes_with_the_command_that_answers_it(service: Fleet, repository: Path) -> None:
    process = service.home.start("fix", str(repository), "--issue", "case asks-in-pipe. x", "--verify", VERIFY)
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(r"answer with: patchyard (tasks answer \S+ \S+ accept)$", line)
        if found:
            break
    else:
        raise AssertionError("no command was printed")
    assert "decline" in process.stdout.readline()
    service.home.cli(*found.group(1).split())
    rest, errors = process.communicate(timeout=PROCESS_S)
    assert process.returncode == 0, rest + errors
    assert "answered: accept" in rest
    assert "removed" in rest


def test_a_question_at_a_terminal_is_answered_there(service: Fleet, repository: Path) -> None:
    with terminal(service, "fix", str(repository), "--issue", "case asks. x", "--verify", VERIFY) as screen:
        screen.read_until("may this command run?")
        screen.read_until("[n]o")
        screen.type("perhaps\n")
        screen.read_until("Please answer")
        screen.type("y\n")
        screen.read_until("removed")
        screen.read_until("verified")
        assert screen.wait() == 0
    assert "tasks answer" not in screen.text
