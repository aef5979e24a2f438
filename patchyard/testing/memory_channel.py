"""A thread's queues in memory: keeps what was committed and checks the rules of the record while it is written."""

import asyncio
from collections.abc import Mapping, Sequence

from patchyard.agent.ports import LeaseLost
from patchyard.protocol.events import TERMINAL_TURN_TYPES, DurableMsg, ItemCompleted, ItemStarted, LiveMsg, TurnStarted
from patchyard.protocol.ids import new_id
from patchyard.protocol.model_items import (
    CompactionItem,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Message,
    OpaqueItem,
    Reasoning,
)
from patchyard.protocol.ops import (
    Compact,
    InterAgentCommunication,
    Op,
    Review,
    RunUserShellCommand,
    Submission,
    TraceContext,
    TurnInput,
)
from patchyard.protocol.rollout_lines import (
    Compacted,
    CompactedLine,
    Effect,
    EffectLine,
    EventMsgLine,
    LinePayload,
    ModelRequestLine,
    ModelRequestRecord,
    ResponseItemLine,
    RolloutLine,
    SessionMeta,
    SessionMetaLine,
    SpanLine,
    SpanRecord,
    Standing,
    StandingLine,
    TurnContext,
    TurnContextLine,
    WorldState,
    WorldStateLine,
)
from patchyard.rollout import RestoredThread, decode_line, encode_line, restore

from .clock import FakeClock

_MODEL_ITEMS = (
    Message,
    Reasoning,
    FunctionCall,
    FunctionCallOutput,
    CustomToolCall,
    CustomToolCallOutput,
    CompactionItem,
    OpaqueItem,
)


_TURN_STARTERS = (TurnInput, Compact, Review, RunUserShellCommand)


class MemoryChannel:
    """ThreadChannel double. A broken rule (an item completed twice, a turn ended twice, …) is an AssertionError."""

    def __init__(self, clock: FakeClock, *, tenant_id: str = "default", thread_id: str | None = None) -> None:
        self.clock = clock
        self.tenant_id = tenant_id
        self.thread_id = thread_id or new_id(clock.now_ms())
        self.lines: list[RolloutLine] = []
        self.shown: list[LiveMsg] = []
        self.commits = 0
        """How many writes there were."""
        self.parked_until: int | None = None
        self.parked_for: tuple[str, ...] = ()
        """Agents whose end wakes it."""
        self.parked = False
        self.kept = False
        """The last turn's end kept the lease."""
        self.active_turn: str | None = None
        self._waiting: dict[str, Submission] = {}
        self._received: set[str] = set()
        self._arrived = asyncio.Event()
        self._lost = False
        self._open_items: set[str] = set()
        self._answered: dict[str, str] = {}

    # --- for tests

    def submit(
        self, op: Op, *, submission_id: str | None = None, trace: TraceContext | None = None, author: str | None = None
    ) -> Submission:
        """Put an Op into the submission queue."""
        submission = Submission(
            id=submission_id or new_id(self.clock.now_ms()),
            tenant_id=self.tenant_id,
            thread_id=self.thread_id,
            op=op,
            trace=trace,
            author=author,
            submitted_at=self.clock.now_ms(),
        )
        self._waiting[submission.id] = submission
        if self.active_turn is None and isinstance(op, _TURN_STARTERS):
            self.active_turn = submission.id
        self._arrived.set()
        return submission

    def lose_lease(self) -> None:
        """Another worker took the thread."""
        self._lost = True
        self._arrived.set()

    def successor(self) -> "MemoryChannel":
        """The channel of the next owner: same records, what was not consumed is received again."""
        other = MemoryChannel(self.clock, tenant_id=self.tenant_id, thread_id=self.thread_id)
        other.lines = list(self.lines)
        other._waiting = dict(self._waiting)
        other._open_items = set(self._open_items)
        other._answered = dict(self._answered)
        other.active_turn = self.active_turn
        other._arrived.set()
        return other

    def restored(self) -> RestoredThread:
        """The thread as a worker that starts now finds it."""
        return restore(decode_line(encode_line(line)) for line in self.lines)

    @property
    def events(self) -> list[DurableMsg]:
        """Durable events, in order."""
        return [line.payload for line in self.lines if isinstance(line, EventMsgLine)]

    @property
    def waiting(self) -> list[str]:
        """Ids of submissions that nobody consumed."""
        return list(self._waiting)

    def answers(self, submission: Submission) -> list[str]:
        """Types of the events that carry this submission's id."""
        return [
            line.payload.type for line in self.lines if isinstance(line, EventMsgLine) and line.submission_id == submission.id
        ]

    def assert_clean(self) -> None:
        """No open item, no running turn, nothing unconsumed."""
        assert not self._open_items, f"items left open: {self._open_items}"  # noqa: S101
        assert self.active_turn is None, f"turn left running: {self.active_turn}"  # noqa: S101
        assert not self._waiting, f"submissions left: {self._waiting}"  # noqa: S101

    # --- ThreadChannel

    async def receive(self) -> Submission:
        """See ThreadChannel."""
        while True:
            self._check_lease()
            for submission_id, submission in self._waiting.items():
                if submission_id not in self._received:
                    self._received.add(submission_id)
                    return submission
            self._arrived.clear()
            await self._arrived.wait()

    async def commit(
        self,
        payloads: Sequence[LinePayload],
        *,
        turn_id: str | None = None,
        submission_id: str | None = None,
        consumed: Sequence[str] = (),
    ) -> None:
        """See ThreadChannel."""
        await asyncio.sleep(0)
        self._check_lease()
        self._write(payloads, turn_id, submission_id, consumed)

    async def finish_turn(
        self,
        payloads: Sequence[LinePayload],
        *,
        turn_id: str,
        consumed: Sequence[str] = (),
        answers: Mapping[str, Sequence[LinePayload]] | None = None,
        keep_lease: bool = False,
    ) -> bool:
        """See ThreadChannel."""
        self.kept = keep_lease
        answers = answers or {}
        await asyncio.sleep(0)
        self._check_lease()
        _require(self.active_turn == turn_id, f"finish of {turn_id}, but {self.active_turn} is active")
        if any(self._is_steer(s, turn_id) and s.id not in (*answers, *consumed) for s in self._waiting.values()):
            return False
        for submission_id, records in answers.items():
            self._write(records, turn_id, submission_id, [submission_id])
        self._write(payloads, turn_id, None, consumed)
        _require(self.active_turn != turn_id, "finish_turn without a terminal event")
        return True

    async def park(
        self,
        payloads: Sequence[LinePayload],
        *,
        turn_id: str,
        until_ms: int | None = None,
        awaits: Sequence[str] = (),
    ) -> None:
        """See ThreadChannel."""
        await asyncio.sleep(0)
        self._check_lease()
        self._write(payloads, turn_id, None, ())
        self.parked, self.parked_until, self.parked_for, self._lost = True, until_ms, tuple(awaits), True

    def live(self, msg: LiveMsg, *, turn_id: str | None = None) -> None:
        """See ThreadChannel."""
        self.shown.append(msg)

    # --- rules

    def _check_lease(self) -> None:
        if self._lost:
            raise LeaseLost

    @staticmethod
    def _is_steer(submission: Submission, turn_id: str) -> bool:
        return submission.id != turn_id and isinstance(submission.op, TurnInput | InterAgentCommunication)

    def _write(
        self, payloads: Sequence[LinePayload], turn_id: str | None, submission_id: str | None, consumed: Sequence[str]
    ) -> None:
        self.commits += 1
        for submission in consumed:
            _require(self._waiting.pop(submission, None) is not None, f"{submission} consumed twice or never submitted")
        for payload in payloads:
            line = _line(payload, len(self.lines), self.clock.now_ms(), turn_id, submission_id)
            if isinstance(line, EventMsgLine):
                self._check_event(line.payload, turn_id)
            self.lines.append(line)

    def _check_event(self, msg: DurableMsg, turn_id: str | None) -> None:
        if isinstance(msg, ItemStarted):
            _require(msg.item.id not in self._open_items, f"item {msg.item.id} started twice")
            self._open_items.add(msg.item.id)
        elif isinstance(msg, ItemCompleted):
            _require(msg.item.id in self._open_items, f"item {msg.item.id} completed without a start")
            self._open_items.discard(msg.item.id)
        elif isinstance(msg, TurnStarted):
            self.active_turn = turn_id
        elif msg.type in TERMINAL_TURN_TYPES:
            _require(self.active_turn == turn_id, f"turn {turn_id} ended but {self.active_turn} is active")
            _require(not self._open_items, f"turn ended with open items {self._open_items}")
            self.active_turn = next(
                (s.id for s in self._waiting.values() if isinstance(s.op, _TURN_STARTERS) and s.id != turn_id), None
            )


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)


def _line(payload: LinePayload, ordinal: int, timestamp: int, turn_id: str | None, submission_id: str | None) -> RolloutLine:
    head = {"ordinal": ordinal, "timestamp": timestamp, "turn_id": turn_id, "submission_id": submission_id, "payload": payload}
    kinds: tuple[tuple[type | tuple[type, ...], type], ...] = (
        (SessionMeta, SessionMetaLine),
        (TurnContext, TurnContextLine),
        (Compacted, CompactedLine),
        (WorldState, WorldStateLine),
        (ModelRequestRecord, ModelRequestLine),
        (Effect, EffectLine),
        (SpanRecord, SpanLine),
        (Standing, StandingLine),
        (_MODEL_ITEMS, ResponseItemLine),
    )
    for payload_type, line_type in kinds:
        if isinstance(payload, payload_type):
            line: RolloutLine = line_type(**head)
            return line
    return EventMsgLine.model_validate(head)
