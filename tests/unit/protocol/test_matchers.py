"""Matchers of hooks: what they fit, and that none of them keeps a worker busy."""

import pytest
from pydantic import ValidationError

from patchyard.protocol.tasks import MOST_HOOKS, MOST_MATCHER_CHARS, HookSpec, TaskCreateRequest, TaskSpec, matcher_fits

LONG = "get_context_remaining"


def request(*matchers: str) -> TaskCreateRequest:
    hooks = {"PreToolUse": [{"matcher": matcher, "command": "true"} for matcher in matchers]}
    spec = {"repository": {"type": "none"}, "instruction": "x", "hooks": hooks}
    return TaskCreateRequest.model_validate({"spec": spec})


@pytest.mark.parametrize("matcher", [None, "", "*", LONG, "get_.*|Bash", "(?i)GET_CONTEXT_REMAINING", "[a-z_]+", r"^\w+$"])
def test_a_matcher_fits_the_whole_name(matcher: str | None) -> None:
    assert matcher_fits(matcher, LONG)


@pytest.mark.parametrize("matcher", ["get", "context", "Get_context_remaining", "Bash|get_"])
def test_a_part_is_not_enough(matcher: str) -> None:
    assert not matcher_fits(matcher, LONG)


@pytest.mark.parametrize("matcher", [r"((\w*)*)*!", r"(\w|.|\S)" * 20 + "!", ".*" * 90 + "!"])
def test_no_matcher_tries_all_ways(matcher: str) -> None:
    request(matcher)
    assert not matcher_fits(matcher, LONG)  # backtracking would take years


@pytest.mark.parametrize("matcher", ["(?!Bash).*", r"(.)\1", r"\w{1000}"])
def test_what_the_engine_can_not_do_is_refused_in_new_tasks(matcher: str) -> None:
    with pytest.raises(ValidationError, match="can't be used"):
        request(matcher)


def test_a_task_of_before_with_such_a_matcher_can_still_be_read_and_its_guard_always_runs() -> None:
    spec = request("Bash").spec.model_dump(mode="json")
    spec["hooks"]["PreToolUse"][0]["matcher"] = "(?!Bash).*"
    (hook,) = TaskSpec.model_validate(spec).hooks["PreToolUse"]  # type: ignore[index]
    assert isinstance(hook, HookSpec)
    assert matcher_fits(hook.matcher, "Bash")


def test_a_task_has_not_more_hooks_than_a_box_can_run() -> None:
    request(*["Bash"] * MOST_HOOKS)
    with pytest.raises(ValidationError, match=f"{MOST_HOOKS} hooks"):
        request(*["Bash"] * (MOST_HOOKS + 1))


def test_all_matchers_of_a_task_have_a_common_limit() -> None:
    with pytest.raises(ValidationError, match=f"{MOST_MATCHER_CHARS} characters"):
        request(*["a" * 200] * 6)
