"""The submission queue (SQ): what can be asked of a thread. Every Op is plain data; its answer is an Admission, then events."""

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ._model import WireModel
from .errors import NotSubmittedReason
from .ids import TenantId, Uuid7
from .policies import ApprovalPolicy, BudgetLimits, SandboxPolicy


class TextInput(WireModel):
    """Text from the user."""

    type: Literal["text"] = "text"
    text: str


class ImageInput(WireModel):
    """An image from the user: an https or data URL."""

    type: Literal["image"] = "image"
    url: str
    detail: str | None = None


UserInput = Annotated[TextInput | ImageInput, Field(discriminator="type")]


class StartOrSteer(WireModel):
    """Start a turn when the thread is idle, else steer the running one."""

    type: Literal["start_or_steer"] = "start_or_steer"


class StartIfIdle(WireModel):
    """Start a turn; refused as `not_idle` while one runs."""

    type: Literal["start_if_idle"] = "start_if_idle"


class Steer(WireModel):
    """Give input to the running turn; refused when it is not that turn."""

    type: Literal["steer"] = "steer"
    expected_turn_id: str


TurnInputMode = Annotated[StartOrSteer | StartIfIdle | Steer, Field(discriminator="type")]


class TurnOverrides(WireModel):
    """Settings of a thread that an Op may change for later turns. None: leave as it is."""

    model: str | None = None
    effort: str | None = None
    approval: ApprovalPolicy | None = None
    sandbox: SandboxPolicy | None = None
    cwd: str | None = None

    def over(self, other: "TurnOverrides") -> "TurnOverrides":
        """Both together; where both change a setting, this one's."""
        changed = {name: value for name in TurnOverrides.model_fields if (value := getattr(self, name)) is not None}
        return other.model_copy(update=changed)


class TurnInput(WireModel):
    """All user input: starts a turn or steers one, by its mode."""

    type: Literal["turn_input"] = "turn_input"
    items: tuple[UserInput, ...]
    mode: TurnInputMode = Field(default_factory=StartOrSteer)
    output_schema: dict[str, Any] | None = None
    """JSON Schema of the final answer. A steer must carry the running turn's schema or none."""
    overrides: TurnOverrides | None = None


class Interrupt(WireModel):
    """End the running turn as interrupted. On an idle thread it answers at once."""

    type: Literal["interrupt"] = "interrupt"
    turn_id: str | None = None
    """Only this turn; None: whichever runs."""
    keep_background: bool = False
    """True: commands that became sessions keep running."""


class CleanBackgroundTerminals(WireModel):
    """Kill the commands that outlived their turn."""

    type: Literal["clean_background_terminals"] = "clean_background_terminals"


class RecoverTurn(WireModel):
    """Go on with an unfinished turn under its own id, without new input."""

    type: Literal["recover_turn"] = "recover_turn"
    turn_id: str


class SuspendTurnAndShutdown(WireModel):
    """Hand the unfinished turn to another worker: flush, no terminal event."""

    type: Literal["suspend_turn_and_shutdown"] = "suspend_turn_and_shutdown"


class ThreadSettings(WireModel):
    """Change the thread's settings for later turns."""

    type: Literal["thread_settings"] = "thread_settings"
    overrides: TurnOverrides


class TurnSettings(WireModel):
    """Change the settings of the running turn only."""

    type: Literal["turn_settings"] = "turn_settings"
    turn_id: str
    overrides: TurnOverrides


class InterAgentCommunication(WireModel):
    """A message from another agent's thread."""

    type: Literal["inter_agent_communication"] = "inter_agent_communication"
    author_thread_id: str
    message: str
    trigger_turn: bool = False


class ApprovalDecision(StrEnum):
    """A person's answer to an approval question."""

    ACCEPT = "accept"
    ACCEPT_FOR_SESSION = "accept_for_session"
    DECLINE = "decline"
    CANCEL = "cancel"


class ExecApproval(WireModel):
    """Answer to a question about a command."""

    type: Literal["exec_approval"] = "exec_approval"
    approval_id: str
    decision: ApprovalDecision
    prefix_rule: tuple[str, ...] | None = None
    """With accept: also allow every later command inside the sandbox that starts with these words, on the whole repository."""
    message: str | None = None


class PatchApproval(WireModel):
    """Answer to a question about a patch."""

    type: Literal["patch_approval"] = "patch_approval"
    approval_id: str
    decision: ApprovalDecision
    message: str | None = None


class UserInputAnswer(WireModel):
    """Answers to request_user_input, by question id."""

    type: Literal["user_input_answer"] = "user_input_answer"
    request_id: str
    answers: dict[str, tuple[str, ...]]


class BudgetAnswer(WireModel):
    """Answer to a question about a budget that is used up. `decline`: the turn ends as if nobody had been asked."""

    type: Literal["budget_answer"] = "budget_answer"
    request_id: str
    decision: Literal["accept", "decline", "cancel"]
    budgets: BudgetLimits | None = None
    """With accept: limits for the whole turn, each above what is used already. What is not named here is set as proposed."""

    @model_validator(mode="after")
    def _limits_go_with_accept(self) -> Self:
        if self.budgets is not None and self.decision != "accept":
            raise ValueError("`budgets` can only be given with the decision `accept`")
        return self


class RequestPermissionsResponse(WireModel):
    """Answer to a request for wider permissions."""

    type: Literal["request_permissions_response"] = "request_permissions_response"
    request_id: str
    decision: ApprovalDecision


class DynamicToolResponse(WireModel):
    """A client's result of a tool that the client itself provides."""

    type: Literal["dynamic_tool_response"] = "dynamic_tool_response"
    call_id: str
    output: str
    success: bool


class ResolveElicitation(WireModel):
    """Answer to a question of an MCP server."""

    type: Literal["resolve_elicitation"] = "resolve_elicitation"
    server: str
    request_id: str
    decision: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None


class RefreshMcpServers(WireModel):
    """Read the MCP servers' tool lists again."""

    type: Literal["refresh_mcp_servers"] = "refresh_mcp_servers"


class ReloadUserConfig(WireModel):
    """Read the tenant's configuration again."""

    type: Literal["reload_user_config"] = "reload_user_config"


class Compact(WireModel):
    """Compact the history. During a turn it waits for the step to end."""

    type: Literal["compact"] = "compact"


class ReviewTarget(WireModel):
    """What a review looks at: uncommitted changes when neither is given."""

    base: str | None = None
    instructions: str | None = None


class Review(WireModel):
    """Start a review turn."""

    type: Literal["review"] = "review"
    target: ReviewTarget = Field(default_factory=ReviewTarget)


class RunUserShellCommand(WireModel):
    """Run the user's own command in the thread's sandbox."""

    type: Literal["run_user_shell_command"] = "run_user_shell_command"
    command: str


class Shutdown(WireModel):
    """Close the thread: the running turn is interrupted, later submissions answer `thread_closed`."""

    type: Literal["shutdown"] = "shutdown"


Op = Annotated[
    TurnInput
    | Interrupt
    | CleanBackgroundTerminals
    | RecoverTurn
    | SuspendTurnAndShutdown
    | ThreadSettings
    | TurnSettings
    | InterAgentCommunication
    | ExecApproval
    | PatchApproval
    | UserInputAnswer
    | BudgetAnswer
    | RequestPermissionsResponse
    | DynamicToolResponse
    | ResolveElicitation
    | RefreshMcpServers
    | ReloadUserConfig
    | Compact
    | Review
    | RunUserShellCommand
    | Shutdown,
    Field(discriminator="type"),
]

CONTROL_OPS = frozenset(
    {
        "interrupt",
        "shutdown",
        "exec_approval",
        "patch_approval",
        "user_input_answer",
        "budget_answer",
        "request_permissions_response",
    }
)
"""Ops that still fit when the queue's ordinary places are full, so that a flooded thread can be stopped and answered."""


class TraceContext(WireModel):
    """W3C trace context of whoever asked."""

    traceparent: str
    tracestate: str | None = None


class Submission(WireModel):
    """One entry of a thread's submission queue."""

    id: Uuid7
    tenant_id: TenantId
    thread_id: Uuid7
    op: Op
    trace: TraceContext | None = None
    idempotency_key: str | None = None
    """The same key twice is one submission; the first answer is returned."""
    author: str | None = None
    """Name of the token that it came with."""
    submitted_at: int
    """Milliseconds since the epoch, when the API accepted it."""


class Started(WireModel):
    """A new turn was accepted; its id is the submission's."""

    type: Literal["started"] = "started"
    turn_id: str


class Steered(WireModel):
    """The input goes to the turn that is active."""

    type: Literal["steered"] = "steered"
    turn_id: str


class Applied(WireModel):
    """The Op was taken; what it does is seen in events."""

    type: Literal["applied"] = "applied"


class NotSubmitted(WireModel):
    """Refused; nothing was changed."""

    type: Literal["not_submitted"] = "not_submitted"
    reason: NotSubmittedReason
    active_turn_id: str | None = None


Admission = Annotated[Started | Steered | Applied | NotSubmitted, Field(discriminator="type")]


class SubmissionReceipt(WireModel):
    """The answer to a submission."""

    submission_id: str
    admission: Admission
    duplicate: bool = False
    """True: the idempotency key was known; this is the first answer again."""
