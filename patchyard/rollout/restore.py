"""From a thread's records back to what a worker needs to go on: history, settings, and the turn that was cut off."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from patchyard.protocol.budgets import BudgetRequest
from patchyard.protocol.events import (
    DurableMsg,
    ExecApprovalRequest,
    ItemCompleted,
    ItemStarted,
    OpApplied,
    PatchApprovalRequest,
    RequestResolved,
    RequestUserInput,
    ThreadClosed,
    ThreadSettingsApplied,
    TokenCount,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnParked,
    TurnRecovered,
    TurnStarted,
)
from patchyard.protocol.items import Item
from patchyard.protocol.model_items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    ModelItem,
    TokenUsage,
)
from patchyard.protocol.ops import ApprovalDecision, TraceContext, TurnOverrides
from patchyard.protocol.policies import BudgetLimits
from patchyard.protocol.rollout_lines import (
    CompactedLine,
    EventMsgLine,
    ModelRequestLine,
    ModelRequestRecord,
    ResponseItemLine,
    RolloutLine,
    SessionMeta,
    SessionMetaLine,
    Standing,
    StandingLine,
    TurnContext,
    TurnContextLine,
    WorldStateLine,
)

from .lines import check_lineage
from .usage import add_usage

ToolCall = FunctionCall | CustomToolCall
Question = ExecApprovalRequest | PatchApprovalRequest | RequestUserInput | BudgetRequest
TurnKind = Literal["regular", "review", "compact", "user_shell"]


@dataclass(frozen=True)
class UnfinishedTurn:
    """A turn that began and has no terminal event yet: it goes on under its own id."""

    turn_id: str
    kind: TurnKind
    model: str
    submitted_at: int
    started_at: int
    """Milliseconds since the epoch."""
    active_ms: int
    """Milliseconds that a worker had the turn, over all segments: without the time that it was parked, waited for an answer
    about its budget, or had no worker."""
    trace: TraceContext | None
    segment: int
    """Number of the segment that wrote last, as TurnRecovered tells it; 0 for the turn's first. A successor is the next one."""
    usage: TokenUsage
    cost_usd: float | None
    """None: no request of the turn has a known price."""
    model_requests: int
    """Requests that the provider answered."""
    failed_requests: int
    """Attempts that ended with an error."""
    tool_calls: int
    open_items: tuple[Item, ...]
    """Items that were started and not completed, in order."""
    open_questions: tuple[Question, ...]
    """Questions to a person that nobody has answered."""
    parked: TurnParked | None
    """Set while the turn waits parked."""
    input_recorded: bool
    """The input that started it is in the history."""
    compacted: bool
    """A new window was opened in it."""
    limits: BudgetLimits = field(default_factory=BudgetLimits)
    """Budgets that a person raised in it."""
    budget_declined: bool = False
    """A person gave no more budget, or nobody answered in time."""
    overrides: TurnOverrides = field(default_factory=TurnOverrides)
    """Settings that were changed for this turn only, while it ran."""


@dataclass(frozen=True)
class RestoredThread:
    """Everything that the rollout knows about a thread at its end."""

    meta: SessionMeta | None
    """None: no worker has taken the thread yet."""
    history: tuple[ModelItem, ...]
    """Input of the next model request: the newest window."""
    window_number: int
    turn_context: TurnContext | None
    """Settings of the newest turn."""
    overrides: TurnOverrides
    """Settings changed for later turns, later ones over earlier ones, since that turn began: it does not know them."""
    world_state: dict[str, Any] | None
    """What the model was told about its surroundings in this window; None: nothing yet, or the window is new."""
    open_calls: tuple[ToolCall, ...]
    """Calls in the history that have no output, in order."""
    turn: UnfinishedTurn | None
    usage: TokenUsage
    """Total of the thread."""
    last_usage: TokenUsage | None
    """Usage of the newest answered request of the window: how full it is. None: none was answered yet."""
    counted_items: int
    """Items of the history that this usage covers."""
    cost_usd: float | None
    """Newest total that was reported; None: unknown."""
    next_ordinal: int
    closed: bool
    standing: Standing = field(default_factory=Standing)
    """What people allowed for the thread, and its child agents."""
    left_open: tuple[Item, ...] = ()
    """Items of the newest turn that has ended, which nobody completed: its end was written without its worker."""


def restore(lines: Iterable[RolloutLine]) -> RestoredThread:
    """Fold a thread's lines, oldest first.

    The lines are the whole thread, or its session_meta line followed by what `load_thread` reads from the end; the result
    is the same. OrdinalGap when lines are missing among them.
    """
    fold = _Fold()
    for line in _checked(lines):
        fold.add(line)
    return fold.result()


def _checked(lines: Iterable[RolloutLine]) -> Iterable[RolloutLine]:
    iterator = iter(lines)
    first = next(iterator, None)
    if first is None:
        return
    yield first
    if isinstance(first, SessionMetaLine):
        # The head may stand alone before a suffix, so continuity is asked only of what follows it.
        yield from check_lineage(iterator)
    else:
        yield from check_lineage(iterator, first=first.ordinal + 1)


@dataclass
class _TurnFold:
    """The newest unfinished turn while lines go by."""

    turn_id: str
    started: TurnStarted
    segment_at: int
    segment: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)
    cost_usd: float | None = None
    model_requests: int = 0
    failed_requests: int = 0
    tool_calls: int = 0
    items: dict[str, Item] = field(default_factory=dict)
    questions: dict[str, Question] = field(default_factory=dict)
    parked: TurnParked | None = None
    input_recorded: bool = False
    compacted: bool = False
    earlier_ms: int = 0
    last_at: int = 0
    limits: BudgetLimits = field(default_factory=BudgetLimits)
    budget_declined: bool = False
    overrides: TurnOverrides = field(default_factory=TurnOverrides)

    def __post_init__(self) -> None:
        # Times of records only: they come from one clock, which need not be the one that `started_at` was read from.
        self.last_at = self.segment_at

    def seen(self, timestamp: int) -> None:
        """A record was written. While the turn is parked or waits for more budget that is nobody's work."""
        if self.parked is None and not any(isinstance(asked, BudgetRequest) for asked in self.questions.values()):
            self.last_at = max(self.last_at, timestamp)

    def recovered(self, msg: TurnRecovered, timestamp: int) -> None:
        self.earlier_ms = self.active_ms
        self.segment_at = self.last_at = timestamp
        self.segment = msg.segment
        self.parked = None

    def resolved(self, msg: RequestResolved, timestamp: int) -> None:
        question = self.questions.pop(msg.request_id, None)
        if not isinstance(question, BudgetRequest):
            return
        self.earlier_ms = self.active_ms
        self.segment_at = self.last_at = timestamp
        self.budget_declined = msg.decision in (ApprovalDecision.DECLINE, "expired")
        if msg.budgets is not None:
            self.limits = msg.budgets.over(self.limits)

    @property
    def active_ms(self) -> int:
        return self.earlier_ms + max(0, self.last_at - self.segment_at)

    def request(self, record: ModelRequestRecord) -> None:
        if record.error is not None:
            self.failed_requests += 1
        elif record.completed_at is not None:
            self.model_requests += 1
        self.usage = add_usage(self.usage, record.usage)
        if record.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + record.cost_usd

    def result(self) -> UnfinishedTurn:
        return UnfinishedTurn(
            turn_id=self.turn_id,
            kind=self.started.kind,
            model=self.started.model,
            submitted_at=self.started.submitted_at,
            started_at=self.started.started_at,
            trace=self.started.trace,
            segment=self.segment,
            usage=self.usage,
            cost_usd=self.cost_usd,
            model_requests=self.model_requests,
            failed_requests=self.failed_requests,
            tool_calls=self.tool_calls,
            open_items=tuple(self.items.values()),
            open_questions=tuple(self.questions.values()),
            parked=self.parked,
            active_ms=self.active_ms,
            input_recorded=self.input_recorded,
            compacted=self.compacted,
            limits=self.limits,
            budget_declined=self.budget_declined,
            overrides=self.overrides,
        )


class _Fold:
    """State of a thread while its lines go by."""

    def __init__(self) -> None:
        self._meta: SessionMeta | None = None
        self._history: list[ModelItem] = []
        self._window = 0
        self._context: TurnContext | None = None
        self._overrides = TurnOverrides()
        self._in_turn = TurnOverrides()
        """Of them, those since the newest turn began."""
        self._world: dict[str, Any] | None = None
        self._turn: _TurnFold | None = None
        self._left_open: dict[str, Item] = {}
        self._summed = TokenUsage()
        self._reported: TokenCount | None = None
        self._last_usage: TokenUsage | None = None
        self._counted = 0
        self._next = 0
        self._closed = False
        self._standing = Standing()

    def add(self, line: RolloutLine) -> None:
        self._next = line.ordinal + 1
        # What is not a turn's is not its work: the answer to a person's question about the thread may come between two segments.
        recovers = isinstance(line, EventMsgLine) and isinstance(line.payload, TurnRecovered)
        if self._turn is not None and line.turn_id == self._turn.turn_id and not recovers:
            self._turn.seen(line.timestamp)
        match line:
            case SessionMetaLine():
                self._meta = line.payload
            case TurnContextLine():
                self._context = line.payload
                self._overrides = self._in_turn
                if self._turn is not None:
                    self._turn.input_recorded = True
            case ResponseItemLine():
                self._history.append(line.payload)
                if self._turn is not None and isinstance(line.payload, ToolCall):
                    self._turn.tool_calls += 1
            case CompactedLine():
                self._history = list(line.payload.replacement_history)
                self._window = line.payload.window_number
                self._last_usage, self._counted = None, 0
                if self._turn is not None:
                    self._turn.compacted = True
                # The model has lost what it was told: the surroundings count as untold until they are recorded again.
                self._world = None
            case WorldStateLine():
                known = {} if line.payload.full or self._world is None else self._world
                self._world = known | line.payload.state
            case ModelRequestLine():
                self._summed = add_usage(self._summed, line.payload.usage)
                if line.payload.usage is not None and line.payload.error is None:
                    self._usage_of_window(line.payload.usage)
                if self._turn is not None:
                    self._turn.request(line.payload)
            case StandingLine():
                self._standing = line.payload
            case EventMsgLine():
                self._event(line.payload, line.turn_id, line.timestamp)
            case _:
                pass

    def _usage_of_window(self, usage: TokenUsage) -> None:
        self._last_usage, self._counted = usage, len(self._history)

    def _event(self, msg: DurableMsg, turn_id: str | None, timestamp: int) -> None:
        match msg:
            case TurnStarted() if turn_id is not None:
                self._turn = _TurnFold(turn_id, msg, timestamp)
                self._in_turn = TurnOverrides()
                self._left_open = {}
            case TurnCompleted() | TurnInterrupted() | TurnFailed():
                if self._turn is not None and turn_id in (None, self._turn.turn_id):
                    self._left_open = self._turn.items
                    self._turn = None
            case TokenCount():
                self._reported = msg
                self._usage_of_window(msg.last)
            case ThreadSettingsApplied():
                self._overrides = msg.overrides.over(self._overrides)
                self._in_turn = msg.overrides.over(self._in_turn)
            case ThreadClosed():
                self._closed = True
            case _ if self._turn is not None:
                self._turn_event(self._turn, msg, timestamp)
            case _:
                pass

    def _turn_event(self, turn: _TurnFold, msg: DurableMsg, timestamp: int) -> None:
        match msg:
            case TurnRecovered():
                turn.recovered(msg, timestamp)
            case TurnParked():
                turn.parked = msg
            case ItemStarted():
                turn.items[msg.item.id] = msg.item
                turn.input_recorded = turn.input_recorded or msg.item.id == turn.turn_id
            case ItemCompleted():
                turn.items.pop(msg.item.id, None)
            case ExecApprovalRequest() | PatchApprovalRequest():
                turn.questions[msg.approval_id] = msg
            case RequestUserInput() | BudgetRequest():
                turn.questions[msg.request_id] = msg
            case RequestResolved():
                turn.resolved(msg, timestamp)
            case OpApplied() if msg.overrides is not None:
                turn.overrides = msg.overrides.over(turn.overrides)
            case _:
                pass

    def result(self) -> RestoredThread:
        answered = {item.call_id for item in self._history if isinstance(item, FunctionCallOutput | CustomToolCallOutput)}
        reported = self._reported
        return RestoredThread(
            meta=self._meta,
            history=tuple(self._history),
            window_number=self._window,
            turn_context=self._context,
            overrides=self._overrides,
            world_state=self._world,
            open_calls=tuple(item for item in self._history if isinstance(item, ToolCall) and item.call_id not in answered),
            turn=self._turn.result() if self._turn is not None else None,
            usage=reported.total if reported is not None else self._summed,
            last_usage=self._last_usage,
            counted_items=self._counted,
            cost_usd=reported.cost_usd if reported is not None else None,
            next_ordinal=self._next,
            closed=self._closed,
            standing=self._standing,
            left_open=tuple(self._left_open.values()),
        )
