"""The rollout: the durable record of a thread, one JSON object a line.

One committed record is both the line that recovery reads and, for `event_msg`, the event that watchers see.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from ._model import WireModel
from .approvals import ApprovedRules
from .errors import ErrorInfo
from .events import DurableMsg
from .ids import TenantId
from .model_items import ModelItem, TokenUsage
from .policies import ApprovalPolicy, SandboxPolicy
from .tasks import TaskSpec


class SessionMeta(WireModel):
    """First line of a thread."""

    thread_id: str
    tenant_id: TenantId
    task_id: str | None = None
    spec: TaskSpec
    base_instructions: str
    prompt_version: str
    """Version and hash of the instructions, so that a behaviour can be traced to them."""
    patchyard_version: str
    forked_from: str | None = None


class TurnContext(WireModel):
    """Settings that a turn ran with."""

    turn_id: str
    model: str
    effort: str | None = None
    cwd: str
    approval: ApprovalPolicy
    sandbox: SandboxPolicy
    prompt_version: str


class Compacted(WireModel):
    """A new context window: recovery needs only the newest of these and what follows."""

    window_number: int
    replacement_history: tuple[ModelItem, ...]
    summary: str | None = None
    reason: Literal["manual", "context_limit", "model_asked", "model_downshift", "model_changed"]
    """`model_asked`: by the tool `new_context_window`. `model_changed`: same content, because the next model can't be sent what
    was sent to the last one."""
    method: Literal["local", "remote", "token_budget"] | None = None
    """How it was made; None: nothing was left out."""


class WorldState(WireModel):
    """Context that was told to the model, so that later turns send only differences."""

    full: bool
    state: dict[str, Any]


class ModelRequestRecord(WireModel):
    """One attempt of a model request. Times are milliseconds since the epoch; None: not reached."""

    request_id: str
    response_id: str | None = None
    model: str
    provider: str
    transport: Literal["sse", "websocket"]
    attempt: int
    queued_at: int
    sent_at: int | None = None
    first_byte_at: int | None = None
    first_token_at: int | None = None
    completed_at: int | None = None
    input_items: int
    usage: TokenUsage | None = None
    cost_usd: float | None = None
    error: ErrorInfo | None = None
    span_id: str | None = None


class Effect(WireModel):
    """Journal of something done to the outside world: the intent before, the outcome after."""

    key: str
    """Natural key that the outside system can be asked for."""
    stage: Literal["intent", "done"]
    kind: str
    data: dict[str, Any] = Field(default_factory=dict)


class SpanRecord(WireModel):
    """A span that no item stands for (container start, snapshot, queue wait), so that the trace can be rebuilt."""

    span_id: str
    parent_span_id: str | None = None
    name: str
    started_at: int
    ended_at: int
    attributes: dict[str, str | int | float | bool] = Field(default_factory=dict)


class Allowance(WireModel):
    """How far an agent may go. None: no limit of that kind."""

    model_requests: int | None = None
    tool_calls: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None


class ChildAgent(WireModel):
    """An agent that this thread's agent started in a thread of its own."""

    thread_id: str
    turn_id: str
    """The parent's turn that started it and pays for it."""
    message: str
    """Beginning of what it was told."""
    closed: bool = False
    usage: TokenUsage = Field(default_factory=TokenUsage)
    """As far as the parent has counted it, like the three that follow."""
    cost_usd: float | None = None
    model_requests: int = 0
    tool_calls: int = 0
    share: Allowance | None = None
    """What each of its turns may use, of the parent's budgets. None: it was started before shares were kept."""
    up_to: Allowance | None = None
    """What its thread may have used in all when its present turn ends: so much is set aside. None: it rests."""


class Standing(WireModel):
    """What a successor has to know and no other line tells. The newest one counts; it is repeated after each Compacted."""

    approved: ApprovedRules = Field(default_factory=ApprovedRules)
    agents: tuple[ChildAgent, ...] = ()


class _Line(WireModel):
    timestamp: int
    """Milliseconds since the epoch."""
    ordinal: int
    """0-based, continuous in a thread."""
    submission_id: str | None = None
    turn_id: str | None = None


class SessionMetaLine(_Line):
    """See SessionMeta."""

    type: Literal["session_meta"] = "session_meta"
    payload: SessionMeta


class TurnContextLine(_Line):
    """See TurnContext."""

    type: Literal["turn_context"] = "turn_context"
    payload: TurnContext


class ResponseItemLine(_Line):
    """An item of the model's input: part of the history."""

    type: Literal["response_item"] = "response_item"
    payload: ModelItem


class EventMsgLine(_Line):
    """An event, as watchers saw it."""

    type: Literal["event_msg"] = "event_msg"
    payload: DurableMsg


class CompactedLine(_Line):
    """See Compacted."""

    type: Literal["compacted"] = "compacted"
    payload: Compacted


class WorldStateLine(_Line):
    """See WorldState."""

    type: Literal["world_state"] = "world_state"
    payload: WorldState


class ModelRequestLine(_Line):
    """See ModelRequestRecord."""

    type: Literal["model_request"] = "model_request"
    payload: ModelRequestRecord


class EffectLine(_Line):
    """See Effect."""

    type: Literal["effect"] = "effect"
    payload: Effect


class SpanLine(_Line):
    """See SpanRecord."""

    type: Literal["span"] = "span"
    payload: SpanRecord


class StandingLine(_Line):
    """See Standing."""

    type: Literal["standing"] = "standing"
    payload: Standing


RolloutLine = Annotated[
    SessionMetaLine
    | TurnContextLine
    | ResponseItemLine
    | EventMsgLine
    | CompactedLine
    | WorldStateLine
    | ModelRequestLine
    | EffectLine
    | SpanLine
    | StandingLine,
    Field(discriminator="type"),
]

LinePayload = (
    SessionMeta
    | TurnContext
    | ModelItem
    | DurableMsg
    | Compacted
    | WorldState
    | ModelRequestRecord
    | Effect
    | SpanRecord
    | Standing
)
