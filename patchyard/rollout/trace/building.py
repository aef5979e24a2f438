"""From a thread's lines to its span tree."""

from collections.abc import Iterable

from patchyard.protocol.budgets import BudgetRequest
from patchyard.protocol.events import (
    DurableMsg,
    ExecApprovalRequest,
    HookCompleted,
    HookStarted,
    ItemCompleted,
    ItemStarted,
    PatchApprovalRequest,
    PatchProduced,
    RequestResolved,
    RequestUserInput,
    SetupCompleted,
    SetupStarted,
    StreamError,
    TaskStatusChanged,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnParked,
    TurnRecovered,
    TurnStarted,
    VerificationCompleted,
    VerificationStarted,
    WorkspacePrepared,
)
from patchyard.protocol.ops import TraceContext
from patchyard.protocol.rollout_lines import (
    EventMsgLine,
    ModelRequestLine,
    RolloutLine,
    SessionMetaLine,
    SpanLine,
    SpanRecord,
)

from ._nodes import Node, add_request, finish_item, item_node
from .model import TraceTree


def build_trace(lines: Iterable[RolloutLine]) -> TraceTree:
    """Build the tree from a thread's lines, oldest first. Any beginning of a thread gives a tree."""
    builder = _Builder()
    for line in lines:
        builder.add(line)
    return builder.result()


class _Turn:
    """A turn's spans: the submission that asked for it, and the turn below."""

    def __init__(self, submission: Node, turn: Node) -> None:
        self.submission = submission
        self.node = turn
        self.open: dict[str, Node] = {}
        """Spans that wait for their end, by what ends them."""

    def end(self, at_ms: int) -> None:
        self.node.end_ms = self.submission.end_ms = at_ms


class _Builder:
    """Grows the tree line by line."""

    def __init__(self) -> None:
        self._root: Node | None = None
        self._thread_id: str | None = None
        self._task_id: str | None = None
        self._trace_id: str | None = None
        self._turns: dict[str, _Turn] = {}
        self._spans: list[tuple[SpanRecord, Node, Node]] = []
        self._by_span_id: dict[str, Node] = {}
        self._running: set[str] = set()
        self._outside: dict[str, Node] = {}
        """Open spans that belong to no turn."""

    def add(self, line: RolloutLine) -> None:
        root = self._root = self._root or Node("task", "task", line.timestamp)
        root.end_ms = line.timestamp
        turn = self._turns.get(line.turn_id) if line.turn_id is not None else None
        parent = turn.node if turn is not None else root
        match line:
            case SessionMetaLine():
                self._thread_id, self._task_id = line.payload.thread_id, line.payload.task_id
                root.set(patchyard_version=line.payload.patchyard_version, prompt_version=line.payload.prompt_version)
            case ModelRequestLine():
                node = add_request(parent, line.payload, line.timestamp)
                if line.payload.span_id is not None:
                    self._by_span_id[line.payload.span_id] = node
            case SpanLine():
                self._span(line.payload, parent)
            case EventMsgLine() if isinstance(line.payload, TurnStarted) and line.turn_id is not None:
                self._start(line, line.payload, line.turn_id)
            case EventMsgLine() if isinstance(line.payload, TurnCompleted | TurnInterrupted | TurnFailed):
                self._end(line, line.payload, turn)
            case EventMsgLine():
                self._event(line.payload, line.timestamp, parent, turn)
            case _:
                pass

    def result(self) -> TraceTree:
        root = self._root
        if root is None:
            return TraceTree(None, None, None, None)
        self._place_spans()
        if self._running:
            root.end_ms = None
        root.start_ms = min([root.start_ms, *(child.start_ms for child in root.children)])
        root.set(thread_id=self._thread_id, task_id=self._task_id)
        return TraceTree(self._thread_id, self._task_id, self._trace_id, root.freeze())

    def _start(self, line: EventMsgLine, msg: TurnStarted, turn_id: str) -> None:
        root = self._root or Node("task", "task", line.timestamp)
        submission = root.child("submission", "submission", msg.submitted_at, submission_id=turn_id)
        submission.child("queued", "queue", msg.submitted_at, msg.started_at)
        turn = submission.child("turn", "turn", msg.started_at, turn_id=turn_id, turn_kind=msg.kind, model=msg.model)
        trace_id = _trace_id(msg.trace)
        turn.set(trace_id=trace_id)
        self._trace_id = self._trace_id or trace_id
        self._turns[turn_id] = _Turn(submission, turn)
        self._running.add(turn_id)

    def _end(self, line: EventMsgLine, msg: TurnCompleted | TurnInterrupted | TurnFailed, turn: _Turn | None) -> None:
        status = msg.type.removeprefix("turn_")
        if turn is None:
            # Ended before a worker began it.
            if self._root is not None:
                self._root.event("submission", line.timestamp, status=status, submission_id=line.turn_id)
            return
        turn.end(line.timestamp)
        turn.node.set(
            status=status,
            input_tokens=msg.usage.input_tokens,
            cached_input_tokens=msg.usage.cached_input_tokens,
            output_tokens=msg.usage.output_tokens,
            cost_usd=msg.cost_usd,
            model_requests=msg.model_requests,
            tool_calls=msg.tool_calls,
        )
        if isinstance(msg, TurnFailed):
            turn.node.set(error=msg.error.code.value)
        self._running.discard(line.turn_id or "")

    def _event(self, msg: DurableMsg, at: int, parent: Node, turn: _Turn | None) -> None:
        match msg:
            case ItemStarted():
                node = item_node(msg.item, msg.started_at)
                parent.children.append(node)
                self._opened(turn, f"item {msg.item.id}", node)
            case ItemCompleted():
                item = self._closing(turn, f"item {msg.item.id}")
                if item is None:
                    item = item_node(msg.item, msg.completed_at)
                    parent.children.append(item)
                finish_item(item, msg.item, msg.completed_at)
            case TurnParked():
                self._opened(turn, "parked", parent.child("parked", "wait", at, reason=msg.reason))
            case TurnRecovered():
                if (parked := self._closing(turn, "parked")) is not None:
                    parked.end_ms = at
                parent.event("recovered", at, reason=msg.reason, segment=msg.segment)
            case ExecApprovalRequest() | PatchApprovalRequest():
                waiting = parent.child("approval", "wait", at, approval_id=msg.approval_id, item_id=msg.item_id)
                self._opened(turn, f"question {msg.approval_id}", waiting)
            case RequestUserInput():
                waiting = parent.child("user input", "wait", at, request_id=msg.request_id)
                self._opened(turn, f"question {msg.request_id}", waiting)
            case BudgetRequest():
                waiting = parent.child(
                    "budget", "wait", at, request_id=msg.request_id, budget=msg.budget.value, used=msg.used, limit=msg.limit
                )
                self._opened(turn, f"question {msg.request_id}", waiting)
            case RequestResolved():
                if (question := self._closing(turn, f"question {msg.request_id}")) is not None:
                    question.end_ms = at
                    question.set(decision=str(msg.decision))
                    raised = {} if msg.budgets is None else msg.budgets.named()
                    question.set(**{f"new_{name.value}": limit for name, limit in raised.items()})
            case _:
                self._task_event(msg, at, parent, turn)

    def _task_event(self, msg: DurableMsg, at: int, parent: Node, turn: _Turn | None) -> None:
        match msg:
            case WorkspacePrepared():
                attributes = {"base_commit": msg.base_commit, "image": msg.image, "container": msg.container}
                parent.child("workspace", "workspace", at - msg.duration_ms, at, **attributes)
            case SetupStarted():
                self._opened(turn, "setup", parent.child("setup", "setup", at, command=msg.command[:200], cached=msg.cached))
            case SetupCompleted():
                setup = self._closing(turn, "setup") or parent.child("setup", "setup", at - msg.duration_ms)
                setup.end_ms = at
                setup.set(exit_code=msg.exit_code, image=msg.image)
            case VerificationStarted():
                node = parent.child("verification", "verification", at, round=msg.round, command=msg.command[:200])
                self._opened(turn, f"verification {msg.round}", node)
            case VerificationCompleted():
                result = msg.result
                done = self._closing(turn, f"verification {result.round}")
                done = done or parent.child("verification", "verification", at - result.duration_ms, round=result.round)
                done.end_ms = at
                done.set(passed=result.passed, exit_code=result.exit_code)
            case HookStarted():
                node = parent.child(f"hook {msg.event}", "hook", at, command=msg.command[:200])
                self._opened(turn, f"hook {msg.event} {msg.command}", node)
            case HookCompleted():
                if (hook := self._closing(turn, f"hook {msg.event} {msg.command}")) is not None:
                    hook.end_ms = at
                    hook.set(outcome=msg.outcome)
            case StreamError():
                parent.event("stream error", at, attempt=msg.attempt, error=msg.error.code.value, retry_in_ms=msg.retry_in_ms)
            case PatchProduced():
                patch = msg.patch
                parent.event("patch", at, files=patch.files, insertions=patch.insertions, deletions=patch.deletions)
            case TaskStatusChanged() if self._root is not None:
                self._root.event(f"task {msg.status.value}", at, reason=msg.reason)
            case _:
                pass

    def _opened(self, turn: _Turn | None, name: str, node: Node) -> None:
        if turn is not None:
            turn.open[name] = node
        else:
            self._outside[name] = node

    def _closing(self, turn: _Turn | None, name: str) -> Node | None:
        return (turn.open if turn is not None else self._outside).pop(name, None)

    def _span(self, record: SpanRecord, parent: Node) -> None:
        node = Node(record.name, "span", record.started_at, record.ended_at)
        node.set(**record.attributes)
        self._spans.append((record, node, parent))
        self._by_span_id[record.span_id] = node

    def _place_spans(self) -> None:
        """Hang each span below the one that it names, else below its turn: children are recorded before their parents."""
        parents: dict[Node, Node] = {}
        for record, node, fallback in self._spans:
            above = self._by_span_id.get(record.parent_span_id) if record.parent_span_id is not None else None
            if above is None or _is_below(above, node, parents):
                above = fallback
            parents[node] = above
            above.children.append(node)


def _is_below(node: Node, above: Node, parents: dict[Node, Node]) -> bool:
    current: Node | None = node
    while current is not None:
        if current is above:
            return True
        current = parents.get(current)
    return False


def _trace_id(trace: TraceContext | None) -> str | None:
    parts = trace.traceparent.split("-") if trace is not None else []
    return parts[1] if len(parts) == 4 and len(parts[1]) == 32 else None
