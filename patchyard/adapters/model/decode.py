"""Server-sent events of the Responses API to the agent's model events."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from patchyard.adapters.model.classify import Classifier, read_error
from patchyard.adapters.model.connections.sse import SseEvent
from patchyard.agent.ports import (
    ItemAdded,
    ItemDone,
    ModelEvent,
    RateLimits,
    ReasoningSummaryDelta,
    ResponseCompleted,
    ResponseCreated,
    TextDelta,
    ToolInputDelta,
)
from patchyard.protocol.model_items import ModelItem, TokenUsage

_ITEM: TypeAdapter[ModelItem] = TypeAdapter(ModelItem)

MOST_TOKENS = 10**12
"""Of one count. Sums of these are still exact in Redis, whose scripts know only floats."""

_SKIPPED = frozenset(
    {
        b"response.in_progress",
        b"response.queued",
        b"response.content_part.added",
        b"response.content_part.done",
        b"response.output_text.done",
        b"response.output_text.annotation.added",
        b"response.reasoning_summary_part.added",
        b"response.reasoning_summary_part.done",
        b"response.reasoning_summary_text.done",
        b"response.reasoning_text.delta",
        b"response.reasoning_text.done",
        b"response.function_call_arguments.done",
        b"response.custom_tool_call_input.done",
        b"keepalive",
    }
)
"""Events that repeat what others say: not even parsed."""


def decode_usage(value: Any) -> TokenUsage:
    """Token counts; what is missing or odd counts as 0."""
    if not isinstance(value, Mapping):
        return TokenUsage()
    taken, answered = count_of(value.get("input_tokens")), count_of(value.get("output_tokens"))
    inside, outside = value.get("input_tokens_details"), value.get("output_tokens_details")
    return TokenUsage(
        input_tokens=taken,
        cached_input_tokens=count_of(inside.get("cached_tokens")) if isinstance(inside, Mapping) else 0,
        cache_write_input_tokens=count_of(inside.get("cache_write_tokens")) if isinstance(inside, Mapping) else 0,
        output_tokens=answered,
        reasoning_output_tokens=count_of(outside.get("reasoning_tokens")) if isinstance(outside, Mapping) else 0,
        total_tokens=count_of(value.get("total_tokens")) or taken + answered,
    )


def count_of(value: Any) -> int:
    """A count of tokens; what is none counts as 0."""
    return min(max(0, value), MOST_TOKENS) if isinstance(value, int) and not isinstance(value, bool) else 0


class Decoded(NamedTuple):
    """A model event, and roughly the bytes that it came from."""

    event: ModelEvent
    size: int


_Delta = type[TextDelta] | type[ToolInputDelta] | type[ReasoningSummaryDelta]
_Run = tuple[_Delta, str, int]
"""Deltas that may be joined: kind, item, and paragraph of a summary."""

_DELTAS: Mapping[str, _Delta] = {
    "response.output_text.delta": TextDelta,
    "response.refusal.delta": TextDelta,
    "response.function_call_arguments.delta": ToolInputDelta,
    "response.custom_tool_call_input.delta": ToolInputDelta,
    "response.reasoning_summary_text.delta": ReasoningSummaryDelta,
}


class Decoder:
    """Decodes one stream. Raises ClassifiedError where the stream says that the response failed."""

    def __init__(self, classifier: Classifier) -> None:
        self._classifier = classifier
        self._open_item = ""
        self.response_id: str | None = None

    def feed(self, raw: Iterable[SseEvent]) -> Iterator[Decoded]:
        """What one read brought. Deltas of one item that follow each other become one; nothing is validated for them."""
        key: _Run | None = None
        parts: list[str] = []
        size = 0
        for name, data, length in json_objects(raw):
            kind = data.get("type") or name.decode("utf-8", "replace")
            delta = _DELTAS.get(kind) if isinstance(kind, str) else None
            run = None if delta is None else (delta, self._item_id(data), count_of(data.get("summary_index")))
            if key is not None and run != key:
                yield Decoded(_joined(key, parts), size)
                key, parts, size = None, [], 0
            if run is not None:
                key = run
                parts.append(_delta(data))
                size += length
                continue
            event = self._event(str(kind), data)
            if event is not None:
                yield Decoded(event, length)
        if key is not None:
            yield Decoded(_joined(key, parts), size)

    def end(self) -> Iterator[Decoded]:
        """The stream is over: what follows from that. Nothing for this API, which has a last event."""
        return iter(())

    def _event(self, kind: str, data: Mapping[str, Any]) -> ModelEvent | None:
        match kind:
            case "response.output_item.added":
                return self._added(data.get("item"))
            case "response.output_item.done":
                return ItemDone(self._item(data.get("item")))
            case "response.created":
                self.response_id = _response_id(data)
                return ResponseCreated(self.response_id)
            case "response.completed" | "response.done":
                return self._completed(data)
            case "codex.rate_limits":
                return _limits_told(data)
            case _:
                self._raise_if_failed(kind, data)
                return None

    def _completed(self, data: Mapping[str, Any]) -> ResponseCompleted:
        response = data.get("response")
        response = response if isinstance(response, Mapping) else {}
        end_turn = response.get("end_turn")
        identity = _response_id(data) or self.response_id or ""
        return ResponseCompleted(
            identity, decode_usage(response.get("usage")), end_turn if isinstance(end_turn, bool) else None
        )

    def _raise_if_failed(self, kind: str, data: Mapping[str, Any]) -> None:
        response = data.get("response")
        response = response if isinstance(response, Mapping) else {}
        match kind:
            case "response.failed":
                raise self._classifier.failed(read_error(response.get("error")))
            case "response.cancelled":
                raise self._classifier.failed(
                    read_error({"code": "cancelled", "message": "the provider cancelled the response"})
                )
            case "response.incomplete":
                details = response.get("incomplete_details")
                reason = details.get("reason") if isinstance(details, Mapping) else None
                raise self._classifier.incomplete(str(reason or "not given"))
            case "error":
                # At the top level `type` is the event's own name, not the error's class.
                nested = data.get("error")
                raise self._classifier.failed(read_error(nested or {k: v for k, v in data.items() if k != "type"}))
            case _:
                return

    def _item_id(self, data: Mapping[str, Any]) -> str:
        """Some servers leave it out; deltas belong to the item that was opened last."""
        return str(data.get("item_id") or self._open_item)

    def _added(self, value: Any) -> ItemAdded | None:
        if not isinstance(value, Mapping):
            return None
        self._open_item = str(value.get("id") or value.get("call_id") or "")
        try:
            return ItemAdded(_ITEM.validate_python(_known_parts(without_halves(value))))
        except (ValidationError, PydanticSerializationError):
            return None

    def _item(self, value: Any) -> ModelItem:
        """A finished item. One that can't be understood must not be lost in silence: it may be a tool call."""
        try:
            if isinstance(value, Mapping):
                return _ITEM.validate_python(_known_parts(without_halves(value)))
        except ValidationError as problem:
            first = problem.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise self._classifier.stream_broken(
                f"an item of type {value.get('type')!r} is odd at {place}: {first['msg']}"
            ) from None
        except PydanticSerializationError:
            raise self._classifier.stream_broken("an item is nested too deeply") from None
        raise self._classifier.stream_broken("an item is not an object")


def _joined(run: _Run, parts: list[str]) -> ModelEvent:
    kind, item_id, paragraph = run
    text = parts[0] if len(parts) == 1 else "".join(parts)
    if kind is TextDelta:
        return TextDelta(item_id, text)
    return ToolInputDelta(item_id, text) if kind is ToolInputDelta else ReasoningSummaryDelta(item_id, text, paragraph)


def json_objects(raw: Iterable[SseEvent]) -> Iterator[tuple[bytes, dict[str, Any], int]]:
    """Name, JSON object and length of each event that holds an object.

    One call of the JSON parser for all of them costs less than half of a call for each. A text that is no JSON, or that
    would be two values, shows as an error or a wrong count: then each is read for itself.
    """
    events = [event for event in raw if event.name not in _SKIPPED and event.data != b"[DONE]"]
    if not events:
        return
    try:
        values = json.loads(b"[" + b",".join([event.data for event in events]) + b"]")
    except (ValueError, RecursionError):
        values = []
    if len(values) != len(events):
        values = [_value(event.data) for event in events]
    for event, value in zip(events, values, strict=True):
        if isinstance(value, dict):
            yield event.name, value, len(event.data)


def _value(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def without_halves(value: Any) -> Any:
    """The same JSON with U+FFFD for each lone half of a surrogate pair, which no UTF-8 can hold: as the record will have it.

    PydanticSerializationError: it is nested too deeply to be recorded.
    """
    try:
        _as_recorded(value)
    except PydanticSerializationError:
        text = json.dumps(value, ensure_ascii=False)
        value = json.loads(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))
        _as_recorded(value)
    return value


def _as_recorded(value: Any) -> bytes:
    return to_json([[[[value]]]])  # an item stands as deep as that in the record of a new window


_PARTS = frozenset({"input_text", "input_image", "output_text", "refusal"})


def _known_parts(item: Mapping[str, Any]) -> dict[str, Any]:
    """A message without content parts of unknown kinds: the rest of it is still worth having."""
    found = dict(item)
    content = found.get("content")
    if found.get("type") == "message" and isinstance(content, list):
        found["content"] = [part for part in content if not isinstance(part, Mapping) or part.get("type") in _PARTS]
    return found


def _limits_told(data: Mapping[str, Any]) -> RateLimits | None:
    try:
        return RateLimits(without_halves({name: value for name, value in data.items() if name != "type"}))
    except PydanticSerializationError:
        return None


def _delta(data: Mapping[str, Any]) -> str:
    value = data.get("delta")
    return value if isinstance(value, str) else ""


def _response_id(data: Mapping[str, Any]) -> str:
    response = data.get("response")
    return str(response.get("id") or "") if isinstance(response, Mapping) else ""


_LIMIT_HEADERS = ("x-ratelimit-", "x-codex-", "ratelimit-")


def rate_limits(headers: Mapping[str, str]) -> RateLimits | None:
    """The provider's limits from response headers with lower-case names; None when it sends none."""
    values: dict[str, str | int] = {}
    for name, value in headers.items():
        if name.startswith(_LIMIT_HEADERS):
            key = name.removeprefix("x-").replace("-", "_")
            values[key] = int(value) if value.isascii() and value.isdigit() else value
    return RateLimits(values) if values else None
