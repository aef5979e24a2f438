"""Reads a model request: which thread it belongs to, and whether it has the shape of the Responses API."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from patchyard.replay.log import Wire

WINDOW_HEADERS = ("x-patchyard-window", "x-codex-window-id")
"""Either names the context window `<thread>:<number>`; a new value allows a new history."""


@dataclass(frozen=True)
class ModelCall:
    """A model request after it was read."""

    number: int
    thread: str
    window: str | None
    kind: str
    """`turn`, `compaction`, … as the client says; `turn` when it does not."""
    model: str
    items: list[dict[str, Any]]
    body_bytes: int
    wire: Wire = "sse"


def body_of(data: bytes) -> dict[str, Any] | None:
    """The JSON object in a body; None when it is none."""
    try:
        body = json.loads(data)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def read_call(
    number: int,
    headers: Mapping[str, str],
    body: Mapping[str, Any] | None,
    body_bytes: int,
    *,
    items: list[dict[str, Any]] | None = None,
    wire: Wire = "sse",
) -> ModelCall:
    """Never fails: what is missing is empty, and `malformed` tells. `items`: in place of the body's own input."""
    body = body or {}
    window = next((headers[name] for name in WINDOW_HEADERS if name in headers), None)
    items = items_of(body) if items is None else items
    return ModelCall(
        number=number,
        thread=_thread_key(headers, body, items),
        window=window,
        kind=_kind(headers),
        model=str(body.get("model", "")),
        items=items,
        body_bytes=body_bytes,
        wire=wire,
    )


def items_of(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The input items of a body."""
    value = body.get("input")
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _thread_key(headers: Mapping[str, str], body: Mapping[str, Any], items: list[dict[str, Any]]) -> str:
    for key in (body.get("prompt_cache_key"), headers.get("thread-id"), headers.get("session-id")):
        if isinstance(key, str) and key:
            return key
    first = next((item for item in items if item.get("role") == "user"), {})
    return "message-" + hashlib.blake2b(json.dumps(first, sort_keys=True).encode(), digest_size=8).hexdigest()


def _kind(headers: Mapping[str, str]) -> str:
    if kind := headers.get("x-patchyard-request-kind"):
        return kind
    try:
        metadata = json.loads(headers.get("x-codex-turn-metadata", "{}"))
    except ValueError:
        return "turn"
    return str(metadata.get("request_kind", "turn")) if isinstance(metadata, dict) else "turn"


def malformed(body: Mapping[str, Any] | None) -> list[str]:
    """What a Responses API would refuse."""
    if body is None:
        return ["the body is not a JSON object"]
    problems: list[str] = []
    if not isinstance(body.get("model"), str) or not body["model"]:
        problems.append("`model` must be a text")
    if not isinstance(body.get("input"), str | list) or not body["input"]:
        problems.append("`input` must be a text or a list of items, and not empty")
    elif isinstance(body["input"], list) and not all(isinstance(item, dict) for item in body["input"]):
        problems.append("each item of `input` must be an object")
    if body.get("stream") is not True:
        problems.append("`stream` must be true: this server only streams")
    return problems


def error_body(code: str | None, message: str, kind: str | None = None) -> dict[str, Any]:
    """An error in the API's shape."""
    return {"error": {"type": kind or code or "api_error", "code": code, "message": message, "param": None}}
