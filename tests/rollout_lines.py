"""Builders of rollout lines for tests: a small thread with everything in it, and single lines."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from patchyard.protocol.events import (
    ItemCompleted,
    ItemStarted,
    PatchProduced,
    SetupCompleted,
    SetupStarted,
    TaskStatusChanged,
    TokenCount,
    TurnCompleted,
    TurnStarted,
    VerificationCompleted,
    VerificationStarted,
    WorkspacePrepared,
)
from patchyard.protocol.ids import new_id
from patchyard.protocol.items import CommandExecutionItem, ItemStatus
from patchyard.protocol.model_items import FunctionCall, FunctionCallOutput, InputText, Message, TokenUsage
from patchyard.protocol.ops import TraceContext
from patchyard.protocol.policies import ApprovalMode, WorkspaceWrite
from patchyard.protocol.rollout_lines import (
    CompactedLine,
    EffectLine,
    EventMsgLine,
    ModelRequestLine,
    ModelRequestRecord,
    ResponseItemLine,
    RolloutLine,
    SessionMeta,
    SessionMetaLine,
    SpanLine,
    StandingLine,
    TurnContext,
    TurnContextLine,
    WorldStateLine,
)
from patchyard.protocol.tasks import GitSource, PatchSummary, TaskSpec, TaskStatus, VerifyResult

T0 = 1_790_000_000_000
"""When the threads of the tests begin."""
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
USAGE = TokenUsage(input_tokens=100, output_tokens=20, total_tokens=120)

_LINES: dict[str, Any] = {
    "SessionMeta": SessionMetaLine,
    "TurnContext": TurnContextLine,
    "Compacted": CompactedLine,
    "WorldState": WorldStateLine,
    "ModelRequestRecord": ModelRequestLine,
    "Effect": EffectLine,
    "SpanRecord": SpanLine,
    "Standing": StandingLine,
}
_MODEL_ITEMS = frozenset(
    {"Message", "Reasoning", "FunctionCall", "FunctionCallOutput", "CustomToolCall", "CustomToolCallOutput"}
)


def user(text: str) -> Message:
    return Message(role="user", content=(InputText(text=text),))


def spec(instruction: str = "Fix the bug", url: str = "https://github.com/acme/tool.git") -> TaskSpec:
    return TaskSpec(repository=GitSource(url=url), instruction=instruction)


@dataclass
class Thread:
    """Numbers lines as the queue does; every line comes ten milliseconds after the one before."""

    thread_id: str = field(default_factory=lambda: new_id(T0))
    task_id: str = field(default_factory=lambda: new_id(T0))
    tenant_id: str = "default"
    lines: list[RolloutLine] = field(default_factory=list)
    skipped_ms: int = 0
    """Time that has passed beside the ten milliseconds a line."""

    @property
    def now(self) -> int:
        return T0 + 10 * len(self.lines) + self.skipped_ms

    def add(self, *payloads: Any, turn: str | None = None) -> Sequence[RolloutLine]:
        start = len(self.lines)
        for payload in payloads:
            name = type(payload).__name__
            kind = _LINES.get(name) or (ResponseItemLine if name in _MODEL_ITEMS else EventMsgLine)
            self.lines.append(kind(timestamp=self.now, ordinal=len(self.lines), turn_id=turn, payload=payload))
        return self.lines[start:]

    def meta(self) -> SessionMeta:
        return SessionMeta(
            thread_id=self.thread_id,
            tenant_id=self.tenant_id,
            task_id=self.task_id,
            spec=spec(),
            base_instructions="Be good.",
            prompt_version="1-abc",
            patchyard_version="0.1.0",
        )

    def context(self, turn: str, model: str = "gpt-5.5") -> TurnContext:
        return TurnContext(
            turn_id=turn,
            model=model,
            cwd="/workspace",
            approval=ApprovalMode.NEVER,
            sandbox=WorkspaceWrite(),
            prompt_version="1-abc",
        )

    def started(self, **changes: Any) -> TurnStarted:
        trace = TraceContext(traceparent=f"00-{TRACE}-00f067aa0ba902b7-01")
        return TurnStarted(
            **{"model": "gpt-5.5", "trace": trace, "submitted_at": self.now - 500, "started_at": self.now, **changes}
        )

    def request(self, number: int = 1, **changes: Any) -> ModelRequestRecord:
        now = self.now
        values = {
            "request_id": f"req_{number}",
            "response_id": f"resp_{number}",
            "model": "gpt-5.5",
            "provider": "openai",
            "transport": "sse",
            "attempt": 1,
            "queued_at": now - 9,
            "sent_at": now - 8,
            "first_byte_at": now - 5,
            "first_token_at": now - 4,
            "completed_at": now,
            "input_items": 3,
            "usage": USAGE,
            "cost_usd": 0.5,
        }
        return ModelRequestRecord(**{**values, **changes})

    def command(self, item: str, status: ItemStatus, **changes: Any) -> CommandExecutionItem:
        return CommandExecutionItem(**{"id": item, "command": "pytest -q", "cwd": "/workspace", "status": status, **changes})


def verified_task() -> Thread:
    """A thread of one turn: set-up, a request, a command, a patch, its verification, the end."""
    thread = Thread()
    turn = new_id(T0 + 1)
    thread.add(thread.meta())
    thread.add(thread.started(), thread.context(turn), user("Fix the bug"), turn=turn)
    thread.add(WorkspacePrepared(base_commit="c0ffee", image="img", container="box", duration_ms=30), turn=turn)
    thread.add(SetupStarted(command="pip install pytest", cached=False), turn=turn)
    thread.add(SetupCompleted(exit_code=0, image="img2", output_tail="", duration_ms=20), turn=turn)
    thread.add(thread.request(1), turn=turn)
    thread.add(FunctionCall(call_id="call_1", name="exec_command", arguments="{}"), turn=turn)
    thread.add(ItemStarted(item=thread.command("call_1", ItemStatus.IN_PROGRESS), started_at=thread.now), turn=turn)
    done = thread.command("call_1", ItemStatus.COMPLETED, exit_code=0, duration_ms=10)
    thread.add(ItemCompleted(item=done, completed_at=thread.now), turn=turn)
    thread.add(FunctionCallOutput(call_id="call_1", output="1 passed"), TokenCount(last=USAGE, total=USAGE), turn=turn)
    thread.add(PatchProduced(patch=PatchSummary(artefact_id="p1", files=1, insertions=2, deletions=1, bytes=80)), turn=turn)
    thread.add(VerificationStarted(round=1, command="pytest"), turn=turn)
    thread.add(VerificationCompleted(result=VerifyResult(passed=True, exit_code=0, round=1, duration_ms=9)), turn=turn)
    end = TurnCompleted(
        usage=USAGE,
        cost_usd=0.5,
        model_requests=1,
        tool_calls=1,
        duration_ms=170,
        last_agent_message="Done\0.",
    )
    thread.add(end, TaskStatusChanged(status=TaskStatus.SUCCEEDED, reason="completed"), turn=turn)
    return thread
