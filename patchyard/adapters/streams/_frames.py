"""Frames of events, cut out of stored JSON without decoding it."""

import json
from typing import Any, NamedTuple

from pydantic_core import to_json

from ._source import Fired, Text

_TYPE = b'{"type":"'
_PAYLOAD = b',"type":"event_msg","payload":'
_ORDINAL = b',"ordinal":'
_DELTA_END = b'"}}'
_MSG = b',"msg":'


class EventFrame(NamedTuple):
    """One event as watchers get it."""

    type: str
    """Type of its msg: SSE's `event:`."""
    ordinal: int | None
    """SSE's `id:`; None on live-only events."""
    data: bytes
    """The Event as compact JSON in UTF-8, in one line: SSE's `data:`."""


def frame_of_line(tenant_id: str, thread_id: str, ordinal: int, line: bytes) -> EventFrame | None:
    """The event in a rollout line; None for lines that watchers don't see.

    Relies on the layout that the queue writes (timestamp, ordinal, ids, type, payload); any other line is decoded.
    """
    start = b'{"tenant_id":' + to_json(tenant_id) + b',"thread_id":' + to_json(thread_id)
    names, mark, payload = line.partition(_PAYLOAD)
    at = names.find(_ORDINAL)
    # Before the payload a written line holds only numbers and ids: a mark inside a text would have braces before it.
    if mark and at > 0 and b"{" not in names[1:] and payload.startswith(_TYPE):
        data = start + names[at:] + _MSG + payload
        return EventFrame(_type_of(payload), ordinal, data)
    return _decoded(start, ordinal, line)


def frame_of_text(text: Text | Fired, skip: int) -> EventFrame | None:
    """The event of a live text without its first `skip` bytes; None when nothing is left."""
    kind = text.item_key.partition(":")[0]
    if text.text is None:
        return EventFrame(kind, None, text.head)
    rest = text.text[skip:]
    return EventFrame(kind, None, text.head + rest + _DELTA_END) if rest else None


def _type_of(payload: bytes) -> str:
    return payload[len(_TYPE) : payload.index(b'"', len(_TYPE))].decode()


def _decoded(start: bytes, ordinal: int, line: bytes) -> EventFrame | None:
    record: dict[str, Any] = json.loads(line)
    if record.get("type") != "event_msg":
        return None
    rest = {"ordinal": ordinal, "submission_id": record.get("submission_id"), "turn_id": record.get("turn_id")}
    data = start + b"," + to_json(rest | {"msg": record["payload"]})[1:]
    return EventFrame(str(record["payload"]["type"]), ordinal, data)
