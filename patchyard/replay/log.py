"""What the replay model was asked: a bounded log, with questions that tests put to it."""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

_SECRET_HEADERS = frozenset({"authorization", "api-key", "x-api-key", "proxy-authorization", "cookie"})

Wire = Literal["sse", "websocket", "chat"]
Outcome = Literal["open", "completed", "error", "cut", "client_closed", "refused"]


@dataclass
class RequestEntry:
    """One request. `body` is None when it is no longer kept."""

    number: int
    thread: str
    step: int | None
    window: str | None
    kind: str
    headers: Mapping[str, str]
    body: dict[str, Any] | None
    body_bytes: int
    items: int
    received_at: int
    """Milliseconds since the epoch."""
    status: int = 200
    outcome: Outcome = "open"
    events: int = 0
    """Events that were sent."""
    violations: list[str] = field(default_factory=list)
    wire: Wire = "sse"
    new_items: int | None = None
    """Items that came in the request itself; the others the server knew. None: all."""

    @property
    def input(self) -> Sequence[Mapping[str, Any]]:
        """The input items. LookupError when the body is no longer kept."""
        if self.body is None:
            raise LookupError(f"the body of request {self.number} is no longer kept; raise keep_bodies")
        items = self.body.get("input", [])
        return items if isinstance(items, list) else []

    def function_call_output(self, call_id: str) -> Mapping[str, Any]:
        """The output item of a function call. LookupError names the outputs that are there."""
        return self._output("function_call_output", call_id)

    def custom_tool_call_output(self, call_id: str) -> Mapping[str, Any]:
        """The output item of a freeform call. LookupError names the outputs that are there."""
        return self._output("custom_tool_call_output", call_id)

    def _output(self, kind: str, call_id: str) -> Mapping[str, Any]:
        there = [item for item in self.input if item.get("type") == kind]
        for item in there:
            if item.get("call_id") == call_id:
                return item
        names = ", ".join(str(item.get("call_id")) for item in there) or "none"
        raise LookupError(f"request {self.number} has no {kind} for {call_id}; it has: {names}")

    def message_texts(self, role: str) -> list[str]:
        """Texts of all messages of a role, in order."""
        return [
            str(part.get("text", ""))
            for item in self.input
            if item.get("type", "message") == "message" and item.get("role") == role
            for part in _parts(item.get("content"))
        ]

    def summary(self) -> dict[str, Any]:
        """For GET /requests: all but the body and the credentials."""
        return {
            "number": self.number,
            "thread": self.thread,
            "step": self.step,
            "window": self.window,
            "kind": self.kind,
            "wire": self.wire,
            "new_items": self.items if self.new_items is None else self.new_items,
            "items": self.items,
            "body_bytes": self.body_bytes,
            "received_at": self.received_at,
            "status": self.status,
            "outcome": self.outcome,
            "events": self.events,
            "violations": self.violations,
            "headers": {name: "[redacted]" if name in _SECRET_HEADERS else value for name, value in self.headers.items()},
        }


def _parts(content: Any) -> list[Mapping[str, Any]]:
    if isinstance(content, str):
        return [{"text": content}]
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def texts_of(items: Sequence[Mapping[str, Any]]) -> str:
    """Every text of some items, for `contains`: plain, not JSON-escaped."""
    found: list[str] = []
    for item in items:
        _collect(item, found)
    return "\n".join(found)


def _collect(value: Any, found: list[str]) -> None:
    if isinstance(value, str):
        found.append(value)
    elif isinstance(value, dict):
        for child in value.values():
            _collect(child, found)
    elif isinstance(value, list):
        for child in value:
            _collect(child, found)


class RequestLog:
    """The newest requests; the bodies of fewer."""

    def __init__(self, *, keep: int = 1000, keep_bodies: int = 256) -> None:
        self._entries: deque[RequestEntry] = deque(maxlen=keep)
        self._with_body: deque[RequestEntry] = deque()
        self._keep_bodies = keep_bodies
        self.count = 0

    def add(self, entry: RequestEntry) -> None:
        """Keep it; drop the oldest body that is over the bound."""
        self.count += 1
        self._entries.append(entry)
        if self._keep_bodies == 0:
            entry.body = None
            return
        self._with_body.append(entry)
        if len(self._with_body) > self._keep_bodies:
            self._with_body.popleft().body = None

    def all(self) -> tuple[RequestEntry, ...]:
        """Those that are kept, oldest first."""
        return tuple(self._entries)

    def single_request(self) -> RequestEntry:
        """The only request. AssertionError when there were none or more."""
        if self.count != 1:
            raise AssertionError(f"one request was expected, {self.count} came: {self._names()}")
        return self._entries[0]

    def last_request(self) -> RequestEntry:
        """The newest request. AssertionError when there was none."""
        if not self._entries:
            raise AssertionError("a request was expected, none came")
        return self._entries[-1]

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._with_body.clear()
        self.count = 0

    def _names(self) -> str:
        return json.dumps([{"number": e.number, "thread": e.thread, "step": e.step} for e in self._entries])
