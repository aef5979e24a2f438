"""Builders of Responses API events for tests: `sse(...)` makes the events of one response."""

from collections.abc import Sequence
from typing import Any

from patchyard.protocol.model_items import TokenUsage
from patchyard.replay import builders

Event = dict[str, Any]


def ev_created(response_id: str = "resp_1") -> Event:
    """`response.created`."""
    return builders.created(response_id)


def ev_message(text: str, *, item_id: str = "msg_1", phase: str | None = None) -> list[Event]:
    """A message of the assistant with its deltas."""
    return list(builders.message_events(item_id, text, phase=phase))


def ev_reasoning(text: str, *, item_id: str = "rs_1") -> list[Event]:
    """A reasoning summary with its deltas."""
    return list(builders.reasoning_events(item_id, text))


def ev_function_call(call_id: str, name: str, arguments: dict[str, Any] | str) -> list[Event]:
    """A function call with its deltas; text as arguments is sent as it is."""
    return list(builders.function_call_events(call_id, name, arguments))


def ev_custom_call(call_id: str, name: str, text: str) -> list[Event]:
    """A freeform call with its deltas."""
    return list(builders.custom_call_events(call_id, name, text))


def ev_completed(response_id: str = "resp_1", *, usage: TokenUsage | None = None, end_turn: bool | None = None) -> Event:
    """`response.completed`."""
    return builders.completed(response_id, usage=usage, end_turn=end_turn)


def ev_failed(code: str, message: str, *, response_id: str = "resp_1") -> Event:
    """`response.failed`."""
    return builders.failed(response_id, code=code, message=message)


def ev_incomplete(reason: str, *, response_id: str = "resp_1") -> Event:
    """`response.incomplete`."""
    return builders.incomplete(response_id, reason=reason)


def sse(*parts: Event | list[Event]) -> Sequence[Event]:
    """The events of one response, flattened; `created` and `completed` are added where they are missing."""
    events: list[Event] = []
    for part in parts:
        if isinstance(part, list):
            events.extend(part)
        else:
            events.append(part)
    kinds = [event.get("type") for event in events]
    if "response.created" not in kinds:
        events.insert(0, ev_created())
    if kinds[-1:] not in (["response.completed"], ["response.failed"], ["response.incomplete"], ["error"]):
        events.append(ev_completed())
    return events
