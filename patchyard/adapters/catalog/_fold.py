"""What one event changes in the rows of its task, thread and turn."""

from patchyard.protocol.budgets import BudgetRequest
from patchyard.protocol.errors import ErrorInfo
from patchyard.protocol.events import (
    ExecApprovalRequest,
    PatchApprovalRequest,
    PatchProduced,
    RequestResolved,
    RequestUserInput,
    SessionConfigured,
    TaskStatusChanged,
    ThreadClosed,
    TokenCount,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnParked,
    TurnRecovered,
    TurnStarted,
    VerificationCompleted,
    VerificationStarted,
)
from patchyard.protocol.rollout_lines import EventMsgLine
from patchyard.protocol.tasks import TaskStatus, TurnStatus
from patchyard.rollout import add_usage

from ._views import clean, usage_of
from .database.tables import MAX_REASON, TaskRow, ThreadRow, TurnRow

Terminal = TurnCompleted | TurnInterrupted | TurnFailed


def fold_event(line: EventMsgLine, *, task: TaskRow | None, thread: ThreadRow, turn: TurnRow | None) -> TurnRow | None:
    """Apply an event. Answers the row of a turn that it opened."""
    opened = None
    match line.payload:
        case TurnStarted() as msg if turn is None and line.turn_id is not None:
            opened = _new_turn(line, msg, thread)
            thread.model = clean(msg.model)
        case TurnCompleted() | TurnInterrupted() | TurnFailed() as msg:
            _end_turn(line, msg, thread, turn)
        case TokenCount() as msg:
            _count(msg, thread, turn)
        case ExecApprovalRequest() | PatchApprovalRequest() | RequestUserInput() | BudgetRequest() if turn is not None:
            turn.open_questions += 1
        case RequestResolved() if turn is not None:
            turn.open_questions = max(turn.open_questions - 1, 0)
        case SessionConfigured() as msg:
            thread.model = clean(msg.model)
        case ThreadClosed():
            thread.closed = True
        case _:
            pass
    if task is not None and _speaks_for_task(line, opened or turn):
        _fold_task(line, task, thread, open_questions=turn.open_questions if turn is not None else 0)
    return opened


def _speaks_for_task(line: EventMsgLine, turn: TurnRow | None) -> bool:
    """Whether the task's state follows this event. A review or a user's own command leaves it as it was."""
    return turn is None or turn.kind == "regular" or isinstance(line.payload, PatchProduced | TokenCount)


def _count(msg: TokenCount, thread: ThreadRow, turn: TurnRow | None) -> None:
    """One more response: totals of the thread, and what the turn has used so far (its terminal event replaces that)."""
    thread.usage = msg.total.model_dump_json()
    if turn is not None:
        before = usage_of(turn.usage)
        turn.usage = (msg.last if before is None else add_usage(before, msg.last)).model_dump_json()
    if msg.cost_usd is not None:
        if turn is not None:
            turn.cost_usd = (turn.cost_usd or 0.0) + msg.cost_usd - (thread.cost_usd or 0.0)
        thread.cost_usd = msg.cost_usd


def _new_turn(line: EventMsgLine, msg: TurnStarted, thread: ThreadRow) -> TurnRow:
    thread.last_turn_id = line.turn_id
    return TurnRow(
        tenant_id=thread.tenant_id,
        thread_id=thread.thread_id,
        turn_id=line.turn_id,
        kind=msg.kind,
        model=clean(msg.model),
        status=TurnStatus.IN_PROGRESS.value,
        open_questions=0,
        started_at=msg.started_at,
        model_requests=0,
        tool_calls=0,
    )


def _end_turn(line: EventMsgLine, msg: Terminal, thread: ThreadRow, turn: TurnRow | None) -> None:
    if thread.usage is None:
        thread.usage = msg.usage.model_dump_json()
    if msg.cost_usd is not None and (turn is None or turn.cost_usd is None):
        # Responses that were counted one by one are in the thread's total already.
        thread.cost_usd = (thread.cost_usd or 0.0) + msg.cost_usd
    if turn is None:
        # A turn that was ended before any worker began it.
        return
    match msg:
        case TurnCompleted():
            turn.status = TurnStatus.COMPLETED.value
        case TurnInterrupted():
            turn.status = TurnStatus.INTERRUPTED.value
        case TurnFailed():
            turn.status = TurnStatus.FAILED.value
    turn.open_questions = 0
    turn.completed_at = line.timestamp
    turn.usage = msg.usage.model_dump_json()
    turn.cost_usd = msg.cost_usd
    turn.model_requests = msg.model_requests
    turn.tool_calls = msg.tool_calls


def _fold_task(line: EventMsgLine, task: TaskRow, thread: ThreadRow, *, open_questions: int) -> None:
    at = line.timestamp
    match line.payload:
        case TurnStarted() as msg:
            task.turn_id = line.turn_id or task.turn_id
            task.started_at = task.started_at or msg.started_at
            task.trace_id = task.trace_id or _trace_id(msg)
            set_status(task, TaskStatus.RUNNING, "running", at)
        case TaskStatusChanged() as msg:
            set_status(task, msg.status, msg.reason, at, error=msg.error)
        case TurnCompleted() | TurnInterrupted() | TurnFailed() as msg:
            _end_task(task, msg, at)
            task.usage, task.cost_usd = thread.usage, thread.cost_usd
        case TokenCount():
            task.usage, task.cost_usd = thread.usage, thread.cost_usd
        case TurnParked() as msg:
            set_status(task, TaskStatus.WAITING, msg.reason, at)
        case ExecApprovalRequest() | PatchApprovalRequest():
            set_status(task, TaskStatus.WAITING, "approval", at)
        case RequestUserInput():
            set_status(task, TaskStatus.WAITING, "user_input", at)
        case BudgetRequest():
            set_status(task, TaskStatus.WAITING, "budget", at)
        case RequestResolved() | TurnRecovered() if open_questions == 0 and not TaskStatus(task.status).is_terminal:
            set_status(task, TaskStatus.RUNNING, "running", at)
        case VerificationStarted():
            set_status(task, TaskStatus.VERIFYING, "verifying", at)
        case VerificationCompleted() as msg:
            task.verified = msg.result.passed
            task.verify = msg.result.model_dump_json()
            if task.status == TaskStatus.VERIFYING:
                set_status(task, TaskStatus.RUNNING, "running", at)
        case PatchProduced() as msg:
            task.patch = msg.patch.model_dump_json()
        case _:
            pass


def _end_task(task: TaskRow, msg: Terminal, at: int) -> None:
    """What a turn's end says about its task, unless a status that was told before says more."""
    if isinstance(msg, TurnCompleted) and msg.last_agent_message is not None:
        task.final_message = clean(msg.last_agent_message)
    if TaskStatus(task.status).is_terminal:
        return
    match msg:
        case TurnCompleted():
            set_status(task, TaskStatus.SUCCEEDED, "completed", at)
        case TurnInterrupted():
            set_status(task, TaskStatus.CANCELLED, "interrupted", at)
        case TurnFailed():
            set_status(task, TaskStatus.FAILED, msg.error.code.value, at, error=msg.error)


def set_status(task: TaskRow, status: TaskStatus, reason: str, at: int, *, error: ErrorInfo | None = None) -> None:
    """Move the task on. A task that goes on after its end (a follow-up turn) loses its end."""
    task.status = status.value
    task.reason = clean(reason)[:MAX_REASON]
    task.error = error.model_dump_json() if error is not None else None
    task.completed_at = at if status.is_terminal else None


def _trace_id(msg: TurnStarted) -> str | None:
    parts = msg.trace.traceparent.split("-") if msg.trace is not None else []
    return parts[1] if len(parts) == 4 and len(parts[1]) == 32 else None
