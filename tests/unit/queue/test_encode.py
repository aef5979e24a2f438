"""What is written is exactly a RolloutLine, and what watchers get is exactly an Event."""

from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from patchyard.adapters.queue._encode import encode, escape
from patchyard.adapters.streams import frame_of_line
from patchyard.protocol import events, model_items, rollout_lines
from patchyard.protocol.events import Event
from patchyard.protocol.items import AgentMessageItem
from patchyard.protocol.model_items import TokenUsage
from patchyard.protocol.policies import ApprovalMode, ReadOnly
from patchyard.protocol.rollout_lines import RolloutLine
from patchyard.protocol.tasks import NoSource, TaskSpec

LINE: TypeAdapter[Any] = TypeAdapter(RolloutLine)
SPEC = TaskSpec(repository=NoSource(), instruction="do it")
TRICKY = 'quotes " , {"type":"event_msg","payload":{"type":"x"} \\ \n \u2028 é \U0001f600'

PAYLOADS: list[tuple[str, Any]] = [
    (
        "session_meta",
        rollout_lines.SessionMeta(
            thread_id="t", tenant_id="a", spec=SPEC, base_instructions=TRICKY, prompt_version="1", patchyard_version="0"
        ),
    ),
    (
        "turn_context",
        rollout_lines.TurnContext(
            turn_id="u", model="m", cwd="/", approval=ApprovalMode.NEVER, sandbox=ReadOnly(), prompt_version="1"
        ),
    ),
    ("response_item", model_items.Message(role="user", content=(model_items.InputText(text=TRICKY),))),
    ("response_item", model_items.Reasoning(encrypted_content="x")),
    ("response_item", model_items.FunctionCall(call_id="c", name="n", arguments=TRICKY)),
    ("response_item", model_items.FunctionCallOutput(call_id="c", output=TRICKY)),
    ("response_item", model_items.CustomToolCall(call_id="c", name="n", input=TRICKY)),
    ("response_item", model_items.CustomToolCallOutput(call_id="c", output=TRICKY)),
    ("response_item", model_items.CompactionItem()),
    ("response_item", model_items.OpaqueItem.model_validate({"type": "web_search_call", "status": "done"})),
    ("compacted", rollout_lines.Compacted(window_number=1, replacement_history=(), reason="manual")),
    ("world_state", rollout_lines.WorldState(full=True, state={"a": 1})),
    ("effect", rollout_lines.Effect(key="k", stage="done", kind="branch")),
    ("span", rollout_lines.SpanRecord(span_id="s", name="n", started_at=1, ended_at=2)),
    ("event_msg", events.Warning_(message=TRICKY)),
    ("event_msg", events.ItemCompleted(item=AgentMessageItem(id="i", text=TRICKY), completed_at=1)),
]


@pytest.mark.parametrize(("line_type", "payload"), PAYLOADS)
def test_a_line_is_what_pydantic_would_write(line_type: str, payload: BaseModel) -> None:
    found = encode([payload], first_ordinal=7, now_ms=lambda: 1234, submission_id="s", turn_id=None)  # type: ignore[list-item]
    (line,) = found.lines
    parsed = LINE.validate_json(line)
    assert (parsed.type, parsed.ordinal, parsed.timestamp, parsed.submission_id, parsed.turn_id) == (
        line_type, 7, 1234, "s", None,
    )  # fmt: skip
    assert parsed.payload == payload
    assert line == parsed.model_dump_json().encode()
    assert found.event_flags == [int(line_type == "event_msg")]
    frame = frame_of_line("tenant", "thread", 7, line)
    if line_type != "event_msg":
        assert frame is None
        return
    assert frame is not None
    expected = Event.model_validate(
        {"tenant_id": "tenant", "thread_id": "thread", "ordinal": 7, "submission_id": "s", "msg": parsed.payload.model_dump()}
    )
    assert Event.model_validate_json(frame.data) == expected
    assert frame.data == expected.model_dump_json().encode()


def test_every_durable_message_is_an_event() -> None:
    from typing import get_args

    from patchyard.adapters.queue._encode import _LINE_TYPES

    for member in get_args(get_args(events.DurableMsg)[0]):
        assert _LINE_TYPES[member] == "event_msg"


def test_totals_count_requests_once_and_tokens_of_every_attempt() -> None:
    def request(attempt: int, cost: float | None) -> rollout_lines.ModelRequestRecord:
        usage = TokenUsage(input_tokens=10, output_tokens=1, total_tokens=11)
        return rollout_lines.ModelRequestRecord(
            request_id="r", model="m", provider="p", transport="sse", attempt=attempt, queued_at=1, input_items=1, usage=usage,
            cost_usd=cost,
        )  # fmt: skip

    call = model_items.CustomToolCall(call_id="c", name="apply_patch", input="")
    found = encode(
        [request(1, 0.5), request(2, None), call], first_ordinal=0, now_ms=lambda: 1, submission_id=None, turn_id="t"
    )
    assert found.totals == {"requests": 1, "calls": 1, "input_tokens": 20, "output_tokens": 2, "total_tokens": 22}
    assert found.cost_usd == 0.5


@pytest.mark.parametrize("text", ["", "plain", TRICKY, "half \ud83d", "\ud800\udc00 joined"])
def test_escaped_pieces_can_be_joined(text: str) -> None:
    whole = TypeAdapter(str).validate_json(b'"' + escape(text) + escape("tail") + b'"')
    assert whole.encode("utf-8", "replace").decode() == whole
    assert whole.endswith("tail")
    if text.isascii():
        assert whole == text + "tail"
