"""The event queue (EQ): what a thread tells its watchers.

DurableMsg   committed, numbered, replayable; also the rollout's event lines
LiveMsg      only for those who watch now: deltas and progress, never numbered, never stored
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from ._model import WireModel
from .approvals import ApprovalRule, SessionScope
from .budgets import BudgetRequest
from .errors import ErrorInfo, NotSubmittedReason
from .ids import TenantId
from .items import FileUpdate, Item, PlanStep
from .model_items import TokenUsage
from .ops import ApprovalDecision, TraceContext, TurnOverrides
from .policies import BudgetLimits
from .tasks import PatchSummary, TaskStatus, VerifyResult

# --- life cycle ---------------------------------------------------------------------------------


class SessionConfigured(WireModel):
    """A worker took the thread for the first time."""

    type: Literal["session_configured"] = "session_configured"
    model: str
    cwd: str
    rollout_prefix: str


class TurnStarted(WireModel):
    """A turn began."""

    type: Literal["turn_started"] = "turn_started"
    kind: Literal["regular", "review", "compact", "user_shell"] = "regular"
    model: str
    model_context_window: int | None = None
    trace: TraceContext | None = None
    submitted_at: int
    started_at: int


class TurnRecovered(WireModel):
    """Another worker goes on with the turn after a restart, hand-over or park."""

    type: Literal["turn_recovered"] = "turn_recovered"
    segment: int
    reason: Literal["worker_lost", "hand_over", "unparked"]


class TurnParked(WireModel):
    """The turn waits and holds no lease, slot or container."""

    type: Literal["turn_parked"] = "turn_parked"
    reason: Literal["approval", "user_input", "budget", "retry_time", "agents"]
    until: int | None = None


class TurnCompleted(WireModel):
    """Terminal: the turn ended normally."""

    type: Literal["turn_completed"] = "turn_completed"
    usage: TokenUsage
    cost_usd: float | None = None
    model_requests: int
    tool_calls: int
    duration_ms: int
    last_agent_message: str | None = None


class TurnInterrupted(WireModel):
    """Terminal: the turn was stopped by a person or a shutdown."""

    type: Literal["turn_interrupted"] = "turn_interrupted"
    usage: TokenUsage
    cost_usd: float | None = None
    model_requests: int = 0
    tool_calls: int = 0
    duration_ms: int = 0
    dropped_submission_ids: tuple[str, ...] = ()
    """Steers that were accepted but not delivered; clients send them again."""


class TurnFailed(WireModel):
    """Terminal: the turn ended with an error. The work so far is kept."""

    type: Literal["turn_failed"] = "turn_failed"
    error: ErrorInfo
    usage: TokenUsage
    cost_usd: float | None = None
    model_requests: int = 0
    tool_calls: int = 0
    duration_ms: int = 0


class ThreadClosed(WireModel):
    """The thread takes no more submissions."""

    type: Literal["thread_closed"] = "thread_closed"


class ThreadSettingsApplied(WireModel):
    """Settings changed for later turns."""

    type: Literal["thread_settings_applied"] = "thread_settings_applied"
    overrides: TurnOverrides


class OpRejected(WireModel):
    """The answer to an Op that could not be applied when its turn came."""

    type: Literal["op_rejected"] = "op_rejected"
    op: str
    reason: NotSubmittedReason | None = None
    message: str


class OpApplied(WireModel):
    """The answer to an Op that has no other visible effect."""

    type: Literal["op_applied"] = "op_applied"
    op: str
    overrides: TurnOverrides | None = None
    """Of `turn_settings`: what it changed for the running turn."""


# --- task ---------------------------------------------------------------------------------------


class TaskStatusChanged(WireModel):
    """The task moved on."""

    type: Literal["task_status_changed"] = "task_status_changed"
    status: TaskStatus
    reason: str
    error: ErrorInfo | None = None


class WorkspacePrepared(WireModel):
    """Checkout, set-up image and container are ready."""

    type: Literal["workspace_prepared"] = "workspace_prepared"
    base_commit: str | None
    image: str
    container: str | None = None
    confinement: dict[str, Any] = Field(default_factory=dict)
    """What the sandbox really enforces, as boxd reported it."""
    duration_ms: int


class SetupStarted(WireModel):
    """The set-up command runs."""

    type: Literal["setup_started"] = "setup_started"
    command: str
    cached: bool


class SetupCompleted(WireModel):
    """The set-up command ended."""

    type: Literal["setup_completed"] = "setup_completed"
    exit_code: int | None
    image: str | None
    output_tail: str
    duration_ms: int


class PatchProduced(WireModel):
    """The work tree's difference to the base was stored."""

    type: Literal["patch_produced"] = "patch_produced"
    patch: PatchSummary


class VerificationStarted(WireModel):
    """The verify command runs in a fresh container."""

    type: Literal["verification_started"] = "verification_started"
    round: int
    command: str


class VerificationCompleted(WireModel):
    """The verify command ended."""

    type: Literal["verification_completed"] = "verification_completed"
    result: VerifyResult


# --- items and tokens ---------------------------------------------------------------------------


class ItemStarted(WireModel):
    """An item was opened."""

    type: Literal["item_started"] = "item_started"
    item: Item
    started_at: int


class ItemCompleted(WireModel):
    """An item was closed, with its final content."""

    type: Literal["item_completed"] = "item_completed"
    item: Item
    completed_at: int


class TokenCount(WireModel):
    """After each model response."""

    type: Literal["token_count"] = "token_count"
    last: TokenUsage
    total: TokenUsage
    """Sum over the thread."""
    model_context_window: int | None = None
    cost_usd: float | None = None
    rate_limits: dict[str, Any] | None = None


class PlanUpdate(WireModel):
    """The agent changed its plan."""

    type: Literal["plan_update"] = "plan_update"
    explanation: str | None = None
    plan: tuple[PlanStep, ...]


class ReviewFinding(WireModel):
    """One thing that a review found."""

    title: str
    body: str
    priority: int = 2
    """0: must be fixed at once … 3: nice to have."""
    confidence: float | None = None
    """0 to 1."""
    path: str | None = None
    """File, relative to the workspace."""
    line_start: int | None = None
    line_end: int | None = None


class ReviewCompleted(WireModel):
    """What a review turn found, most important first."""

    type: Literal["review_completed"] = "review_completed"
    correct: bool
    """The reviewer's verdict on the whole."""
    explanation: str
    findings: tuple[ReviewFinding, ...] = ()


# --- questions ----------------------------------------------------------------------------------


class ExecApprovalRequest(WireModel):
    """May this command run?"""

    type: Literal["exec_approval_request"] = "exec_approval_request"
    approval_id: str
    item_id: str
    command: tuple[str, ...]
    cwd: str
    reason: str | None = None
    proposed_prefix_rule: tuple[str, ...] | None = None
    session_scope: SessionScope = "thread"
    """What `accept_for_session` covers. A prefix rule always covers the repository, where there is one to name."""


class PatchApprovalRequest(WireModel):
    """May this patch be written?"""

    type: Literal["patch_approval_request"] = "patch_approval_request"
    approval_id: str
    item_id: str
    changes: tuple[FileUpdate, ...]
    reason: str | None = None
    session_scope: SessionScope = "thread"
    """What `accept_for_session` covers."""


class UserQuestion(WireModel):
    """One question to a person."""

    id: str
    header: str
    question: str
    options: tuple[str, ...] = ()


class RequestUserInput(WireModel):
    """The agent asks a person."""

    type: Literal["request_user_input"] = "request_user_input"
    request_id: str
    questions: tuple[UserQuestion, ...]


class RequestResolved(WireModel):
    """A question was answered, or is void."""

    type: Literal["request_resolved"] = "request_resolved"
    request_id: str
    decision: ApprovalDecision | Literal["answered", "expired", "void"]
    budgets: BudgetLimits | None = None
    """Limits that hold for the turn from now on, where a person gave it more budget."""


class ApprovalRemembered(WireModel):
    """What a person just allowed counts for later tasks on the repository as well, until it is revoked."""

    type: Literal["approval_remembered"] = "approval_remembered"
    approval_id: str
    """The question that was answered."""
    repository: str
    rules: tuple[ApprovalRule, ...]
    by: str | None = None
    """Name of the token that answered."""


# --- notices ------------------------------------------------------------------------------------


class Warning_(WireModel):
    """Something a person should know; the turn goes on."""

    type: Literal["warning"] = "warning"
    message: str


class ErrorEvent(WireModel):
    """Fatal for the submission."""

    type: Literal["error"] = "error"
    error: ErrorInfo


class StreamError(WireModel):
    """A model request broke and is tried again."""

    type: Literal["stream_error"] = "stream_error"
    message: str
    attempt: int
    max_attempts: int
    retry_in_ms: int
    error: ErrorInfo


HookSource = Literal["tenant", "task", "repository"]
"""Whose hook it is, in the order in which they count."""


class HookStarted(WireModel):
    """A hook runs."""

    type: Literal["hook_started"] = "hook_started"
    event: str
    command: str
    source: HookSource | None = None


class HookCompleted(WireModel):
    """A hook ended."""

    type: Literal["hook_completed"] = "hook_completed"
    event: str
    command: str
    outcome: Literal["ok", "blocked", "failed", "timed_out"]
    message: str | None = None
    source: HookSource | None = None


DurableMsg = Annotated[
    SessionConfigured
    | TurnStarted
    | TurnRecovered
    | TurnParked
    | TurnCompleted
    | TurnInterrupted
    | TurnFailed
    | ThreadClosed
    | ThreadSettingsApplied
    | OpRejected
    | OpApplied
    | TaskStatusChanged
    | WorkspacePrepared
    | SetupStarted
    | SetupCompleted
    | PatchProduced
    | VerificationStarted
    | VerificationCompleted
    | ItemStarted
    | ItemCompleted
    | TokenCount
    | PlanUpdate
    | ReviewCompleted
    | ExecApprovalRequest
    | PatchApprovalRequest
    | RequestUserInput
    | BudgetRequest
    | RequestResolved
    | ApprovalRemembered
    | Warning_
    | ErrorEvent
    | StreamError
    | HookStarted
    | HookCompleted,
    Field(discriminator="type"),
]

TERMINAL_TURN_TYPES = frozenset({"turn_completed", "turn_interrupted", "turn_failed"})

# --- live only ----------------------------------------------------------------------------------


class AgentMessageDelta(WireModel):
    """More text of the open agent message."""

    type: Literal["agent_message_delta"] = "agent_message_delta"
    item_id: str
    delta: str


class ReasoningDelta(WireModel):
    """More text of the open reasoning summary."""

    type: Literal["reasoning_delta"] = "reasoning_delta"
    item_id: str
    delta: str


class ToolCallInputDelta(WireModel):
    """More of a tool call that the model is still typing."""

    type: Literal["tool_call_input_delta"] = "tool_call_input_delta"
    item_id: str
    name: str
    delta: str


class ExecOutputDelta(WireModel):
    """More output of a running command, control sequences kept."""

    type: Literal["exec_output_delta"] = "exec_output_delta"
    item_id: str
    delta: str


class PatchProgress(WireModel):
    """Files that a patch touches, as far as it has arrived."""

    type: Literal["patch_progress"] = "patch_progress"
    item_id: str
    paths: tuple[str, ...]


class SetupOutputDelta(WireModel):
    """More output of the set-up or verify command."""

    type: Literal["setup_output_delta"] = "setup_output_delta"
    phase: Literal["setup", "verify"]
    delta: str


LiveMsg = Annotated[
    AgentMessageDelta | ReasoningDelta | ToolCallInputDelta | ExecOutputDelta | PatchProgress | SetupOutputDelta,
    Field(discriminator="type"),
]

EventMsg = Annotated[
    DurableMsg | LiveMsg,
    Field(discriminator="type"),
]


class Event(WireModel):
    """One entry of a thread's event queue, as watchers get it."""

    tenant_id: TenantId
    thread_id: str
    ordinal: int | None = None
    """Number of the committed record; None: live only."""
    submission_id: str | None = None
    turn_id: str | None = None
    msg: EventMsg
