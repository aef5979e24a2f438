"""The request body. A turn sends its history again with each step: items that were sent before are not serialised again."""

import json
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from patchyard.agent.ports import ModelRequest
from patchyard.protocol.model_items import ModelItem

CACHE_BYTES = 32 * 1024 * 1024
"""Histories kept as bytes; beyond it those least recently used are serialised anew when they come again."""


@dataclass
class _Sent:
    """A thread's input as it was sent last. Items are held, so that identity is a safe key."""

    items: list[ModelItem] = field(default_factory=list)
    ends: "array[int]" = field(default_factory=lambda: array("Q"))
    data: bytearray = field(default_factory=bytearray)
    """Items joined by commas."""


class BodyBuilder:
    """Builds bodies; remembers the serialised history of recently active threads."""

    def __init__(self, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._limit = cache_bytes
        self._cached = 0
        self._threads: OrderedDict[str, _Sent] = OrderedDict()

    def build(self, request: ModelRequest, *, reasoning_summary: str | None = None) -> bytes:
        """The JSON body of a request."""
        return join(head_of(request, reasoning_summary, stream=True), self.input(request))

    def forget(self, thread_id: str) -> None:
        """Drop what is kept of a thread."""
        sent = self._threads.pop(thread_id, None)
        if sent is not None:
            self._cached -= len(sent.data)

    def input(self, request: ModelRequest) -> bytes | bytearray:
        """The input items, joined by commas. Valid until the thread's next request."""
        sent = self._threads.pop(request.thread_id, None) or _Sent()
        before = len(sent.data)
        same = _common_prefix(sent.items, request.input)
        del sent.items[same:], sent.ends[same:], sent.data[(sent.ends[same - 1] if same else 0) :]
        for item in request.input[same:]:
            if sent.data:
                sent.data += b","
            sent.data += item.model_dump_json(exclude_none=True).encode()
            sent.ends.append(len(sent.data))
            sent.items.append(item)
        self._cached += len(sent.data) - before
        if len(sent.data) > self._limit:
            self._cached -= len(sent.data)
            return sent.data
        self._threads[request.thread_id] = sent
        while self._cached > self._limit:
            _, oldest = self._threads.popitem(last=False)
            self._cached -= len(oldest.data)
        return sent.data


def head_of(request: ModelRequest, reasoning_summary: str | None, *, stream: bool) -> bytes:
    """All of the body but the input, as a JSON object. Equal requests give equal bytes."""
    fields = {**_fields(request, reasoning_summary), **({"stream": True} if stream else {})}
    return dump(fields)


def join(head: bytes, items: bytes | bytearray) -> bytes:
    """A body from its head and its items."""
    return b"".join((head[:-1], b',"input":[', items, b"]}"))


def dump(value: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def dump_items(items: Sequence[ModelItem]) -> bytes:
    """Items joined by commas."""
    return b",".join([item.model_dump_json(exclude_none=True).encode() for item in items])


def _common_prefix(sent: Sequence[ModelItem], now: Sequence[ModelItem]) -> int:
    count = 0
    for old, new in zip(sent, now, strict=False):
        if old is not new:
            break
        count += 1
    return count


def _fields(request: ModelRequest, reasoning_summary: str | None) -> Mapping[str, Any]:
    fields: dict[str, Any] = {
        "model": request.model,
        "instructions": request.instructions,
        **_tool_fields(request),
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": request.thread_id,
    }
    reasoning = {"effort": request.effort, "summary": reasoning_summary}
    if any(reasoning.values()):
        fields["reasoning"] = {name: value for name, value in reasoning.items() if value is not None}
    if request.output_schema is not None:
        schema = {"type": "json_schema", "name": "final_answer", "strict": True, "schema": dict(request.output_schema)}
        fields["text"] = {"format": schema}
    return fields


def _tool_fields(request: ModelRequest) -> Mapping[str, Any]:
    """Nothing without tools: servers refuse a `tool_choice` or an empty list where there is nothing to choose from."""
    if not request.tools:
        return {}
    return {"tools": list(request.tools), "tool_choice": "auto", "parallel_tool_calls": request.parallel_tool_calls}
