"""Events of the Responses API as the replay model sends them. Names and shapes are the public API's."""

import json
import re
import time
from collections.abc import Iterator
from typing import Any

from patchyard.protocol.model_items import TokenUsage

Event = dict[str, Any]

_TOKEN = re.compile(r"\s*\w{1,6}|\s*[^\w\s]{1,4}|\s+")


def split_tokens(text: str) -> list[str]:
    """Pieces of a few characters, as a model sends them; together they are the text."""
    return _TOKEN.findall(text)


def usage_payload(usage: TokenUsage) -> dict[str, Any]:
    """Token counts in the API's shape."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_output_tokens},
        "total_tokens": usage.total_tokens or usage.input_tokens + usage.output_tokens,
    }


def _response(response_id: str, status: str, model: str, **more: Any) -> dict[str, Any]:
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "model": model,
        "output": [],
        **more,
    }


def created(response_id: str, model: str = "gpt-5.5") -> Event:
    """`response.created`."""
    return {"type": "response.created", "response": _response(response_id, "in_progress", model)}


def completed(
    response_id: str, *, usage: TokenUsage | None = None, model: str = "gpt-5.5", end_turn: bool | None = None
) -> Event:
    """`response.completed`."""
    more = {} if end_turn is None else {"end_turn": end_turn}
    payload = usage_payload(usage if usage is not None else TokenUsage(input_tokens=100, output_tokens=20, total_tokens=120))
    return {"type": "response.completed", "response": _response(response_id, "completed", model, usage=payload, **more)}


def failed(response_id: str, *, code: str | None, message: str, model: str = "gpt-5.5") -> Event:
    """`response.failed`."""
    error = {"code": code or "server_error", "message": message}
    return {"type": "response.failed", "response": _response(response_id, "failed", model, error=error)}


def incomplete(response_id: str, *, reason: str, model: str = "gpt-5.5") -> Event:
    """`response.incomplete`."""
    details = {"reason": reason}
    return {
        "type": "response.incomplete",
        "response": _response(response_id, "incomplete", model, incomplete_details=details),
    }


def item_added(item: Event, index: int) -> Event:
    """`response.output_item.added`."""
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def item_done(item: Event, index: int = 0) -> Event:
    """`response.output_item.done`."""
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def message_events(item_id: str, text: str, *, phase: str | None = None, index: int = 0) -> Iterator[Event]:
    """A message with its deltas."""
    item: Event = {"type": "message", "id": item_id, "role": "assistant", "status": "in_progress", "content": []}
    if phase is not None:
        item["phase"] = phase
    place = {"item_id": item_id, "output_index": index, "content_index": 0}
    part: Event = {"type": "output_text", "text": "", "annotations": []}
    yield item_added(item, index)
    yield {"type": "response.content_part.added", **place, "part": part}
    for token in split_tokens(text):
        yield {"type": "response.output_text.delta", **place, "delta": token}
    part = {**part, "text": text}
    yield {"type": "response.output_text.done", **place, "text": text}
    yield {"type": "response.content_part.done", **place, "part": part}
    yield item_done({**item, "status": "completed", "content": [part]}, index)


def reasoning_events(item_id: str, text: str, *, index: int = 0) -> Iterator[Event]:
    """A reasoning item; blank lines part the paragraphs of its summary."""
    item: Event = {"type": "reasoning", "id": item_id, "summary": []}
    yield item_added(item, index)
    paragraphs = [part for part in re.split(r"\n\s*\n", text.strip()) if part]
    for number, paragraph in enumerate(paragraphs):
        place = {"item_id": item_id, "output_index": index, "summary_index": number}
        yield {
            "type": "response.reasoning_summary_part.added",
            **place,
            "part": {"type": "summary_text", "text": ""},
        }
        for token in split_tokens(paragraph):
            yield {"type": "response.reasoning_summary_text.delta", **place, "delta": token}
        yield {"type": "response.reasoning_summary_text.done", **place, "text": paragraph}
    summary = [{"type": "summary_text", "text": paragraph} for paragraph in paragraphs]
    yield item_done({**item, "summary": summary, "encrypted_content": f"replay-{item_id}"}, index)


def function_call_events(
    call_id: str, name: str, arguments: dict[str, Any] | str, *, item_id: str | None = None, index: int = 0
) -> Iterator[Event]:
    """A function call with the deltas of its arguments."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    identity = item_id or f"fc_{call_id}"
    item: Event = {"type": "function_call", "id": identity, "call_id": call_id, "name": name, "arguments": ""}
    place = {"item_id": identity, "output_index": index}
    yield item_added({**item, "status": "in_progress"}, index)
    for token in split_tokens(text):
        yield {"type": "response.function_call_arguments.delta", **place, "delta": token}
    yield {"type": "response.function_call_arguments.done", **place, "arguments": text}
    yield item_done({**item, "status": "completed", "arguments": text}, index)


def custom_call_events(call_id: str, name: str, text: str, *, item_id: str | None = None, index: int = 0) -> Iterator[Event]:
    """A freeform call with the deltas of its input."""
    identity = item_id or f"ctc_{call_id}"
    item: Event = {"type": "custom_tool_call", "id": identity, "call_id": call_id, "name": name, "input": ""}
    place = {"item_id": identity, "output_index": index}
    yield item_added({**item, "status": "in_progress"}, index)
    for token in split_tokens(text):
        yield {"type": "response.custom_tool_call_input.delta", **place, "delta": token}
    yield {"type": "response.custom_tool_call_input.done", **place, "input": text}
    yield item_done({**item, "status": "completed", "input": text}, index)
