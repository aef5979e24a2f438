"""Rollout lines as bytes: each payload is serialised exactly once, for the stream, the watchers and the rollout alike."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from patchyard.protocol import model_items, rollout_lines
from patchyard.protocol.events import DurableMsg, ItemCompleted, ItemStarted, ThreadClosed
from patchyard.protocol.rollout_lines import LinePayload, ModelRequestRecord

_USAGE = (
    "input_tokens",
    "cached_input_tokens",
    "cache_write_input_tokens",
    "output_tokens",
    "reasoning_output_tokens",
    "total_tokens",
)

_LINE_TYPES: dict[type[BaseModel], str] = {
    rollout_lines.SessionMeta: "session_meta",
    rollout_lines.TurnContext: "turn_context",
    rollout_lines.Compacted: "compacted",
    rollout_lines.WorldState: "world_state",
    rollout_lines.ModelRequestRecord: "model_request",
    rollout_lines.Effect: "effect",
    rollout_lines.SpanRecord: "span",
    rollout_lines.Standing: "standing",
    model_items.Message: "response_item",
    model_items.Reasoning: "response_item",
    model_items.FunctionCall: "response_item",
    model_items.FunctionCallOutput: "response_item",
    model_items.CustomToolCall: "response_item",
    model_items.CustomToolCallOutput: "response_item",
    model_items.CompactionItem: "response_item",
    model_items.OpaqueItem: "response_item",
    **dict.fromkeys(get_args(get_args(DurableMsg)[0]), "event_msg"),
}


@dataclass
class Encoded:
    """Records ready to be committed, and what the scripts must know of them."""

    lines: list[bytes] = field(default_factory=list)
    event_flags: list[int] = field(default_factory=list)
    """1 where the record is an event."""
    touched_items: list[str] = field(default_factory=list)
    """Items whose live text is void now: their start or end is among the records."""
    totals: dict[str, int] = field(default_factory=dict)
    """What the records add to the turn's usage."""
    cost_usd: float | None = None
    closes_thread: bool = False


def encode(
    payloads: Sequence[LinePayload],
    *,
    first_ordinal: int,
    now_ms: Callable[[], int],
    submission_id: str | None,
    turn_id: str | None,
    answers: Mapping[str, Sequence[LinePayload]] | None = None,
) -> Encoded:
    """Number, stamp and serialise records. Layout: that of RolloutLine, payload last.

    `answers`: records that come first, each under the submission that it answers.
    """
    found = Encoded()
    timestamp = now_ms()
    for name, group in [*(answers or {}).items(), (submission_id, payloads)]:
        names = b',"submission_id":' + to_json(name) + b',"turn_id":' + to_json(turn_id)
        for ordinal, payload in enumerate(group, first_ordinal + len(found.lines)):
            line_type = _LINE_TYPES[type(payload)]
            start = b'{"timestamp":%d,"ordinal":%d' % (timestamp, ordinal)
            found.lines.append(start + names + b',"type":"%s","payload":' % line_type.encode() + dump(payload) + b"}")
            found.event_flags.append(1 if line_type == "event_msg" else 0)
            _note(found, payload)
    return found


def dump(payload: BaseModel) -> bytes:
    """Compact JSON in UTF-8. Lone surrogates, which a model can send, become U+FFFD."""
    try:
        return payload.__pydantic_serializer__.to_json(payload)
    except PydanticSerializationError:
        text = json.dumps(payload.model_dump(), ensure_ascii=False, separators=(",", ":"), default=str)
        return replace_surrogates(text)


def replace_surrogates(text: str) -> bytes:
    """UTF-8 of a text that may hold lone surrogates."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def escape(text: str) -> bytes:
    """A text as the inside of a JSON string: pieces can be joined without a new encoding."""
    try:
        return to_json(text)[1:-1]
    except PydanticSerializationError:
        return to_json(replace_surrogates(text).decode())[1:-1]


def _note(found: Encoded, payload: Any) -> None:
    match payload:
        case ItemStarted() | ItemCompleted():
            found.touched_items.append(payload.item.id)
        case ThreadClosed():
            found.closes_thread = True
        case model_items.FunctionCall() | model_items.CustomToolCall():
            _add(found, "calls", 1)
        case ModelRequestRecord():
            if payload.attempt == 1:
                _add(found, "requests", 1)
            if payload.usage is not None:
                for name in _USAGE:
                    _add(found, name, getattr(payload.usage, name))
            if payload.cost_usd is not None:
                found.cost_usd = (found.cost_usd or 0.0) + payload.cost_usd
        case _:
            pass


def _add(found: Encoded, name: str, amount: int) -> None:
    if amount:
        found.totals[name] = found.totals.get(name, 0) + amount
