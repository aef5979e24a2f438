"""What holds beyond one task, as users meet it: approvals of a repository, and hooks of the tenant. And patches that fail."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.fleet import Fleet, fleet
from tests.e2e.repositories import FIX, WRONG_FIX, buggy_repository

pytestmark = [pytest.mark.redis, pytest.mark.engine, pytest.mark.timeout(240)]

SCRIPT = "python3 -c 'print(6 * 7)'"
GUARD = 'case $(cat) in *"return a * b"*) echo "no products here" >&2; exit 2;; esac'
HOOKS = {"no_products": {"event": "PreToolUse", "matcher": "apply_patch", "command": GUARD, "tenants": ["default"]}}


def call(cmd: str) -> dict[str, Any]:
    return {"items": [{"call": "exec_command", "arguments": {"cmd": cmd}}]}


def patches(*texts: str) -> list[dict[str, Any]]:
    return [{"items": [{"custom": "apply_patch", "input": text}]} for text in texts]


def thread(case: str, *steps: dict[str, Any]) -> dict[str, Any]:
    return {"match": {"contains": f"case {case}."}, "steps": [*steps, {"items": [{"message": "Done."}]}]}


def program(patch: str) -> dict[str, Any]:
    return call(f"true; mkdir -p x; cd x; sed 's,calc.py,../calc.py,' <<'EOF' | apply_patch; echo code $?\n{patch}EOF")


MODEL = {
    "threads": [
        *(thread(name, call(SCRIPT)) for name in ("first", "second", "elsewhere", "third")),
        thread("guarded", program(WRONG_FIX), program(FIX)),
        thread("misfit", *patches(FIX.replace("a - b", "b - a"), FIX)),
    ]
}


@pytest.fixture(scope="module")
def service() -> Iterator[Fleet]:
    with fleet(MODEL, PATCHYARD_HOOKS=json.dumps(HOOKS)) as running:
        yield running


@pytest.fixture(scope="module")
def repository(service: Fleet) -> Path:
    return buggy_repository(service.home.root)


def answer(service: Fleet, repository: Path, case: str, decision: str) -> list[dict[str, Any]]:
    """Run a case whose one question is answered; its messages."""
    words = ["fix", str(repository), "--issue", f"case {case}. add() subtracts", "--approval", "untrusted", "--detach"]
    task_id = service.home.cli(*words).stdout.strip()
    said: list[dict[str, Any]] = []
    with service.home.start("tail", task_id, "--json") as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                said.append(json.loads(line)["msg"])
                if said[-1]["type"] == "exec_approval_request":
                    service.home.cli("tasks", "answer", task_id, said[-1]["approval_id"], decision)
        finally:
            process.kill()
    assert said[-1]["type"] == "turn_completed", said[-1]
    service.home.json("tasks", "show", task_id)  # whatever it said is in the catalog now
    return said


def of_type(said: list[dict[str, Any]], *types: str) -> list[dict[str, Any]]:
    return [msg for msg in said if msg["type"] in types]


def test_an_approval_counts_for_the_repository_until_it_is_revoked(service: Fleet, repository: Path) -> None:
    first = answer(service, repository, "first", "accept-for-session")
    (question,) = of_type(first, "exec_approval_request")
    assert question["session_scope"] == "repository"
    (remembered,) = of_type(first, "approval_remembered")
    assert (remembered["repository"], remembered["by"]) == (str(repository), "local")
    (approval,) = service.home.json("approvals", "list", "--repository", str(repository / "."))["data"]
    assert approval["rule"] == {"type": "command", "script": SCRIPT, "cwd": "/workspace"}
    assert SCRIPT in service.home.cli("approvals", "list").stdout

    second = service.fix(repository, "second", "--approval", "untrusted")
    assert second.of_type("exec_approval_request") == []
    (command,) = [m["item"] for m in second.of_type("item_completed") if m["item"]["type"] == "command_execution"]
    assert (command["exit_code"], command["aggregated_output"]) == (0, "42\n")

    other = service.home.root / "elsewhere"
    other.mkdir()
    elsewhere = answer(service, buggy_repository(other), "elsewhere", "decline")
    assert len(of_type(elsewhere, "exec_approval_request")) == 1

    assert f"Revoked on {repository}" in service.home.cli("approvals", "revoke", approval["id"]).stdout
    assert "No approvals" in service.home.cli("approvals", "list").stdout
    (revoked,) = service.home.json("approvals", "list", "--revoked")["data"]
    assert (revoked["id"], revoked["revoked_by"]) == (approval["id"], "local")
    assert len(of_type(answer(service, repository, "third", "decline"), "exec_approval_request")) == 1
    assert "There is no approval 'nope'" in service.home.cli("approvals", "revoke", "nope", code=1).stderr


def test_a_hook_of_the_tenant_meets_the_patches_of_programs_and_no_task_can_switch_it_off(
    service: Fleet, repository: Path
) -> None:
    done = service.fix(repository, "guarded")
    assert [(m["source"], m["event"], m["outcome"]) for m in done.of_type("hook_completed")] == [
        ("tenant", "PreToolUse", "blocked"),
        ("tenant", "PreToolUse", "ok"),
    ]
    outputs = [
        m["item"]["aggregated_output"] for m in done.of_type("item_completed") if m["item"]["type"] == "command_execution"
    ]
    assert outputs[0].endswith("Command blocked by PreToolUse hook: no products here. Nothing was changed.\ncode 1\n")
    assert outputs[1].endswith("M ../calc.py\ncode 0\n")
    assert done.task is not None
    assert "return a + b" in service.home.cli("tasks", "patch", done.task["id"]).stdout
    checks = {check["name"]: check for check in service.home.json("doctor", code=None)["checks"]}
    assert checks["hooks"]["detail"] == "no_products (PreToolUse of apply_patch, default)"


def test_a_patch_that_does_not_fit_is_seen_with_its_reason(service: Fleet, repository: Path) -> None:
    shown = service.text(repository, "misfit").stdout
    failed = shown.index("✘ patch failed: calc.py")
    assert "The patch was not applied." in shown[failed:]
    assert shown.index("± update calc.py") > failed
