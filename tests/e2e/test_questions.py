"""Questions of the agent, as the person at the command line meets them: at a terminal, in a pipe, and later."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.fleet import Fleet, fleet
from tests.e2e.repositories import FIX, VERIFY, buggy_repository
from tests.e2e.screen import terminal
from tests.e2e.test_patch import call, patch, say
from tests.waiting import PROCESS_S

pytestmark = [pytest.mark.engine, pytest.mark.redis, pytest.mark.timeout(300)]

QUESTIONS = [
    {"id": "colour", "header": "Colour", "question": "Which colour shall it be?", "options": ["red", "blue"]},
    {"id": "why", "question": "And why that one?"},
]


def asks(*questions: dict[str, Any]) -> dict[str, Any]:
    return {"items": [{"call": "request_user_input", "arguments": {"questions": list(questions)}, "id": "ask_1"}]}


def expecting(*texts: str, step: dict[str, Any]) -> dict[str, Any]:
    return {**step, "expect": {"contains": list(texts)}}


ANSWERED = expecting("blue", "as the sky", step=patch(FIX))
CASES: dict[str, list[dict[str, Any]]] = {
    "input": [asks(*QUESTIONS), ANSWERED, say("Done.")],
    "input-in-pipe": [asks(*QUESTIONS), ANSWERED, say("Done.")],
    "input-later": [asks(*QUESTIONS), ANSWERED, say("Done.")],
    "stops": [asks(QUESTIONS[1])],
    **{
        name: [call("cat calc.py"), patch(FIX), say("Done.")]
        for name in ("more", "own-limit", "more-in-pipe", "two-answers", "elsewhere")
    },
    **{name: [call("cat calc.py")] for name in ("no-more", "no-more-in-pipe", "nobody-there")},
}
SCRIPT = {"threads": [{"match": {"contains": f"case {name}."}, "steps": steps} for name, steps in CASES.items()]}
ONE = ("--budget", "model_requests=1")


@pytest.fixture(scope="module")
def service() -> Iterator[Fleet]:
    with fleet(SCRIPT) as running:
        yield running


@pytest.fixture(scope="module")
def repository(service: Fleet) -> Path:
    folder = service.home.root / "bug"
    folder.mkdir()
    return buggy_repository(folder)


def fix(repository: Path, case: str, *more: str) -> list[str]:
    return ["fix", str(repository), "--issue", f"case {case}. x", "--verify", VERIFY, *more]


# --- the agent's own questions


def test_questions_are_asked_one_after_the_other(service: Fleet, repository: Path) -> None:
    with terminal(service, *fix(repository, "input")) as screen:
        screen.read_until("[Colour] Which colour shall it be? (1 of 2)")
        screen.read_until("2  blue")
        screen.read_until("/cancel ends the turn): ")
        screen.type("\n")
        screen.read_until("Please answer")
        screen.type("2\n")
        screen.read_until("And why that one? (2 of 2)")
        screen.read_until("/cancel ends the turn): ")
        screen.type("as the sky\n")
        screen.read_until("answered: answered")
        screen.read_until("verified")
        assert screen.wait() == 0
    assert "tasks answer" not in screen.text


def test_a_question_can_end_the_turn(service: Fleet, repository: Path) -> None:
    with terminal(service, *fix(repository, "stops")) as screen:
        screen.read_until("/cancel ends the turn): ")
        screen.type("/cancel\n")
        screen.read_until("the turn was interrupted")
        assert screen.wait() == 130


def test_questions_in_a_pipe_come_with_the_command_that_answers_them(service: Fleet, repository: Path) -> None:
    process = service.home.start(*fix(repository, "input-in-pipe"))
    printed = read_until(process, r"answer with: patchyard (tasks answer \S+ ask_1) NUMBER 'ANSWER'$")
    wrong = service.home.cli(*printed.split(), "2", code=2)
    assert "2 answer(s) are wanted, 1 came" in wrong.stderr
    service.home.cli(*printed.split(), "2", "as the sky")
    rest, errors = process.communicate(timeout=PROCESS_S)
    assert process.returncode == 0, rest + errors


def test_the_open_questions_of_a_task_are_shown_and_asked_later(service: Fleet, repository: Path) -> None:
    process = service.home.start(*fix(repository, "input-later"))
    task_id = read_until(process, r"answer with: patchyard tasks answer (\S+)").split()[0]
    shown = service.home.cli("tasks", "answer", task_id).stdout
    assert "? [Colour] Which colour shall it be?\n    1  red\n    2  blue\n" in shown
    assert f"answer with: patchyard tasks answer {task_id} ask_1" in shown
    (question,) = service.home.json("tasks", "answer", task_id)["questions"]
    assert (question["type"], question["questions"][0]["id"]) == ("request_user_input", "colour")
    assert f"patchyard tasks answer {task_id}" in service.home.cli("tasks", "show", task_id).stdout
    with terminal(service, "tasks", "answer", task_id) as screen:
        screen.read_until("/cancel ends the turn): ")
        screen.type("blue\n")
        screen.read_until("And why that one?")
        screen.type("as the sky\n")
        screen.read_until("Answered.")
        assert screen.wait() == 0
    rest, errors = process.communicate(timeout=PROCESS_S)
    assert process.returncode == 0, rest + errors
    again = service.home.cli("tasks", "answer", task_id, "ask_1", "blue", "no", code=1)
    assert "No turn waits for an answer now." in again.stdout


# --- budgets


def test_more_budget_is_given_at_the_terminal(service: Fleet, repository: Path) -> None:
    with terminal(service, *fix(repository, "more", *ONE)) as screen:
        screen.read_until("the turn's budget is used up (1 of 1 model requests); may it have more?")
        screen.read_until("[y]es: 2 model requests")
        screen.type("y\n")
        screen.read_until("answered: accept (2 model requests)")
        screen.read_until("the turn's budget is used up (2 of 2 model requests)")
        screen.read_until("another limit of model requests? ")
        screen.type("2\n")
        screen.read_until("is used up already (2)")
        screen.type("20\n")
        screen.read_until("answered: accept (20 model requests)")
        screen.read_until("verified")
        assert screen.wait() == 0


def test_no_more_budget_is_exit_code_3(service: Fleet, repository: Path) -> None:
    with terminal(service, *fix(repository, "no-more", *ONE)) as screen:
        screen.read_until("another limit of model requests? ")
        screen.type("n\n")
        screen.read_until("answered: decline")
        screen.read_until("budget_exceeded")
        assert screen.wait() == 3


def test_a_budget_in_a_pipe_is_answered_by_one_command(service: Fleet, repository: Path) -> None:
    process = service.home.start(*fix(repository, "more-in-pipe", *ONE, "--when-spent", "ask"))
    printed = read_until(process, r"or: patchyard (tasks answer \S+ \S+ accept --budget model_requests=)LIMIT$")
    service.home.cli(*f"{printed}9".split())
    rest, errors = process.communicate(timeout=PROCESS_S)
    assert process.returncode == 0, rest + errors
    assert "answered: accept (9 model requests)" in rest


def test_of_two_answers_at_once_only_one_is_told_that_it_counts(service: Fleet, repository: Path) -> None:
    process = service.home.start(*fix(repository, "two-answers", *ONE, "--when-spent", "ask"))
    task_id = read_until(process, r"answer with: patchyard tasks answer (\S+)").split()[0]
    both = [service.home.start("tasks", "answer", task_id, "accept", "--budget", f"model_requests={n}") for n in (8, 9)]
    printed = ["".join(one.communicate(timeout=PROCESS_S)) for one in both]
    assert [one.returncode for one in both].count(0) == 1, printed
    assert sum("Answered." in text for text in printed) == 1, printed
    rest, errors = process.communicate(timeout=PROCESS_S)
    assert process.returncode == 0, rest + errors


def test_a_script_does_not_wait_for_more_budget(service: Fleet, repository: Path) -> None:
    process = service.home.start(*fix(repository, "nobody-there", *ONE))
    printed, errors = process.communicate(timeout=PROCESS_S)
    assert process.returncode == 3, printed + errors
    assert "budget_exceeded" in printed


def test_a_budget_that_is_declined_by_one_command_is_exit_code_3(service: Fleet, repository: Path) -> None:
    process = service.home.start(*fix(repository, "no-more-in-pipe", *ONE, "--when-spent", "ask"), "--json")
    assert process.stdout is not None
    task_id = ""
    for line in process.stdout:
        msg = json.loads(line).get("msg", {})
        if msg.get("type") == "budget_request":
            task_id = service.home.json("tasks", "list", "--search", "no-more-in-pipe")["data"][0]["id"]
            break
    waiting = service.home.json("tasks", "show", task_id)
    assert (waiting["status"], waiting["reason"]) == ("waiting", "budget")
    receipt = service.home.json("tasks", "answer", task_id, "decline")
    assert (receipt["admission"]["type"], receipt["taken"], receipt["reason"]) == ("applied", True, None)
    process.communicate(timeout=PROCESS_S)
    assert process.returncode == 3
    task = service.home.json("tasks", "show", task_id)
    assert (task["status"], task["reason"]) == ("failed", "budget_exceeded")
    trace = service.home.cli("trace", task_id).stdout
    assert "budget=model_requests, decision=decline" in trace


def read_until(process: Any, pattern: str) -> str:
    """The first group of the first line that matches."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        found = re.search(pattern, line)
        if found:
            return found.group(1)
    raise AssertionError("".join(lines))
