"""The span tree of a thread."""

from patchyard.protocol.budgets import BudgetRequest
from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.events import (
    ExecApprovalRequest,
    HookCompleted,
    HookStarted,
    RequestResolved,
    StreamError,
    TurnFailed,
    TurnInterrupted,
    TurnParked,
    TurnRecovered,
)
from patchyard.protocol.ids import new_id
from patchyard.protocol.model_items import TokenUsage
from patchyard.protocol.ops import ApprovalDecision
from patchyard.protocol.policies import BudgetLimits
from patchyard.protocol.rollout_lines import SpanRecord
from patchyard.rollout import TraceNode, build_trace
from tests.rollout_lines import T0, TRACE, USAGE, Thread, verified_task


def outline(node: TraceNode, depth: int = 0) -> list[str]:
    """Kind, name, start and end relative to T0, indented."""
    end = "open" if node.end_ms is None else node.end_ms - T0
    lines = [f"{'  ' * depth}{node.kind} {node.name} {node.start_ms - T0}..{end}"]
    for child in node.children:
        lines += outline(child, depth + 1)
    return lines


def find(node: TraceNode, kind: str) -> list[TraceNode]:
    found = [node] if node.kind == kind else []
    return found + [hit for child in node.children for hit in find(child, kind)]


def test_nothing_has_no_tree() -> None:
    assert build_trace([]).root is None


def test_a_verified_task() -> None:
    thread = verified_task()
    tree = build_trace(thread.lines)
    assert (tree.thread_id, tree.task_id, tree.trace_id) == (thread.thread_id, thread.task_id, TRACE)
    assert tree.root is not None
    assert outline(tree.root) == [
        "task task -490..170",
        "  submission submission -490..160",
        "    queue queued -490..10",
        "    turn turn 10..160",
        "      workspace workspace 10..40",
        "      setup setup 50..60",
        "      model_request chat gpt-5.5 61..70",
        "        phase queued 61..62",
        "        phase wait for first byte 62..65",
        "        phase wait for first token 65..66",
        "        phase stream 66..70",
        "      tool exec_command 90..100",
        "      event patch 130..130",
        "      verification verification 140..150",
        "  event task succeeded 170..170",
    ]
    (request,) = find(tree.root, "model_request")
    assert request.attributes["input_tokens"] == 100
    assert (request.attributes["transport"], request.attributes["attempt"]) == ("sse", 1)
    (tool,) = find(tree.root, "tool")
    assert (tool.attributes["command"], tool.attributes["exit_code"], tool.duration_ms) == ("pytest -q", 0, 10)
    (turn,) = find(tree.root, "turn")
    assert (turn.attributes["status"], turn.attributes["cost_usd"]) == ("completed", 0.5)


def test_failed_attempts_parks_questions_and_hooks() -> None:
    thread = Thread()
    turn = new_id(T0)
    busy = ErrorInfo.of(ErrorCode.MODEL_OVERLOADED, "busy")
    thread.add(thread.meta(), thread.started(), turn=turn)
    failed = thread.request(1, error=busy, usage=None, first_byte_at=None, first_token_at=None, completed_at=None)
    thread.add(failed, turn=turn)
    thread.add(StreamError(message="m", attempt=1, max_attempts=5, retry_in_ms=200, error=busy), turn=turn)
    thread.add(HookStarted(event="PreToolUse", command="lint"), turn=turn)
    thread.add(HookCompleted(event="PreToolUse", command="lint", outcome="ok"), turn=turn)
    thread.add(ExecApprovalRequest(approval_id="q", item_id="i", command=("x",), cwd="/"), turn=turn)
    thread.add(TurnParked(reason="approval"), turn=turn)
    thread.add(TurnRecovered(segment=2, reason="unparked"), turn=turn)
    thread.add(RequestResolved(request_id="q", decision=ApprovalDecision.ACCEPT), turn=turn)
    thread.add(TurnFailed(error=busy, usage=USAGE), turn=turn)
    root = build_trace(thread.lines).root
    assert root is not None
    (request,) = find(root, "model_request")
    assert (request.attributes["error"], request.end_ms) == ("model_overloaded", T0 + 20)
    assert [child.name for child in request.children] == ["queued"]
    assert [(node.name, node.start_ms - T0, node.duration_ms) for node in find(root, "wait")] == [
        ("approval", 60, 30),
        ("parked", 70, 10),
    ]
    assert [(node.name, node.attributes["outcome"], node.duration_ms) for node in find(root, "hook")] == [
        ("hook PreToolUse", "ok", 10)
    ]
    assert [node.name for node in find(root, "event")] == ["stream error", "recovered"]
    assert find(root, "turn")[0].attributes["error"] == "model_overloaded"


def test_a_question_about_a_budget_says_which_and_what_came_of_it() -> None:
    thread = Thread()
    turn = new_id(T0)
    thread.add(thread.meta(), thread.started(), turn=turn)
    proposed = BudgetLimits(tokens=1800)
    thread.add(BudgetRequest(request_id="b", budget="tokens", used=950, limit=900, proposed=proposed), turn=turn)
    thread.add(RequestResolved(request_id="b", decision=ApprovalDecision.ACCEPT, budgets=proposed), turn=turn)
    root = build_trace(thread.lines).root
    assert root is not None
    (wait,) = find(root, "wait")
    assert (wait.name, wait.duration_ms) == ("budget", 10)
    assert wait.attributes == {
        "request_id": "b",
        "budget": "tokens",
        "used": 950,
        "limit": 900,
        "decision": "accept",
        "new_tokens": 1800,
    }


def test_a_running_turn_is_open() -> None:
    thread = verified_task()
    root = build_trace(thread.lines[:10]).root
    assert root is not None
    assert root.end_ms is None
    assert find(root, "turn")[0].duration_ms is None
    assert find(root, "tool")[0].end_ms is None


def test_spans_hang_below_the_span_that_they_name_also_when_it_comes_later() -> None:
    thread = Thread()
    turn = new_id(T0)

    def span(name: str, parent: str | None) -> SpanRecord:
        return SpanRecord(span_id=name, parent_span_id=parent, name=name, started_at=T0, ended_at=T0 + 5, attributes={"n": 1})

    thread.add(thread.meta(), thread.started(), turn=turn)
    thread.add(span("create", "container"), span("container", "elsewhere"), span("x", "y"), span("y", "x"), turn=turn)
    thread.add(thread.request(1, span_id="req"), span("dns", "req"), span("self", "self"), turn=turn)
    thread.add(span("outside", None))
    root = build_trace(thread.lines).root
    assert root is not None
    (node,) = find(root, "turn")
    assert [child.name for child in node.children] == ["container", "y", "self", "chat gpt-5.5"]
    assert [child.name for child in node.children[0].children] == ["create"]
    assert [child.name for child in node.children[1].children] == ["x"]
    assert "dns" in [child.name for child in node.children[3].children]
    assert [child.name for child in root.children] == ["submission", "outside"]


def test_a_submission_that_no_worker_took() -> None:
    thread = Thread()
    thread.add(TurnInterrupted(usage=TokenUsage()), turn=new_id(T0))
    root = build_trace(thread.lines).root
    assert root is not None
    assert [(node.name, node.attributes["status"]) for node in root.children] == [("submission", "interrupted")]
