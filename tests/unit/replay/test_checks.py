"""The rules that the replay model holds its clients to."""

from typing import Any

from patchyard.replay.checks import History, check_history, check_pairs, digest_items

CALL = {"type": "function_call", "call_id": "a", "name": "exec_command", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "a", "output": "ok"}
CUSTOM = {"type": "custom_tool_call", "call_id": "b", "name": "apply_patch", "input": "x"}
CUSTOM_OUTPUT = {"type": "custom_tool_call_output", "call_id": "b", "output": "ok"}
USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}


def kinds(*items: dict[str, Any]) -> list[str]:
    return [finding.kind.value for finding in check_pairs(items)]


def after(
    before: list[dict[str, Any]], now: list[dict[str, Any]], *, window: str = "t:0", calls: tuple[str, ...] = ()
) -> list[str]:
    history = History()
    history.record(before, digest_items(before), "t:0")
    history.emitted_calls = list(calls)
    return [finding.kind.value for finding in check_history(history, now, digest_items(now), window)]


def test_pairs() -> None:
    assert kinds(USER, CALL, CUSTOM, OUTPUT, CUSTOM_OUTPUT) == []
    assert kinds(USER, OUTPUT) == ["orphan_output"]
    assert kinds(OUTPUT, CALL) == ["orphan_output"]
    assert kinds(CALL) == ["unanswered_call"]
    assert kinds(CALL, OUTPUT, OUTPUT) == ["duplicate_output"]
    assert kinds(CALL, CALL, OUTPUT) == ["duplicate_call"]
    assert kinds(CALL, CUSTOM, CUSTOM_OUTPUT, OUTPUT) == ["output_order"]
    assert kinds(CALL, {**CUSTOM_OUTPUT, "call_id": "a"}) == ["output_kind"]


def test_history_may_only_grow_within_a_window() -> None:
    assert after([USER], [USER, CALL, OUTPUT]) == []
    assert after([USER], [USER]) == []
    assert after([USER, CALL, OUTPUT], [USER]) == ["rewritten_history"]
    assert after([USER], [{**USER, "role": "developer"}, CALL]) == ["rewritten_history"]
    assert after([USER], [CALL], window="t:1") == []
    assert after([USER], [{"content": USER["content"], "role": "user", "type": "message"}]) == []


def test_the_calls_of_the_last_answer_must_come_back() -> None:
    assert after([USER], [USER, CALL, OUTPUT], calls=("a",)) == []
    assert after([USER], [USER], calls=("a",)) == ["lost_call"]
    assert after([USER], [USER], calls=("a",), window="t:1") == []


def test_the_first_difference_is_named() -> None:
    history = History()
    history.record([USER, CALL], digest_items([USER, CALL]), None)
    changed = [USER, {**CALL, "arguments": '{"x": 1}'}]
    (finding,) = check_history(history, changed, digest_items(changed), None)
    assert finding.message == "input[1] is now `function_call` and was `function_call` with other content"
