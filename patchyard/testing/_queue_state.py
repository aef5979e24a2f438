"""State and shared steps of the in-memory queue; the counterpart of `lua/prelude.lua`."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from patchyard.adapters.queue._backend import Reply, StreamEntry

_AGING_MS = 600_000
_FIRE_BODY = 8192
_FIRE_LENGTH = 10_000
TOTALS = (
    "input_tokens",
    "cached_input_tokens",
    "cache_write_input_tokens",
    "output_tokens",
    "reasoning_output_tokens",
    "total_tokens",
)

Args = Mapping[str, Any]


@dataclass
class Waiting:
    """An entry of a thread's submission queue."""

    id: str
    role: str
    turn: str
    starts: str
    op: str
    submitted_at: int
    json: bytes


@dataclass
class OpenItem:
    fence: str
    offset: int
    head: bytes
    text: bytes | None


@dataclass
class MemoryThread:
    tenant: str
    task: str
    repo: str
    spec: str
    title: str
    prio: int
    status: str = "idle"
    turn: str = ""
    kind: str = ""
    schema: str = ""
    turn_at: int = 0
    fence: int = 0
    next: int = 0
    segment: int = 0
    crashes: int = 0
    trimmed: int = -1
    worker: str = ""
    why: str = "new"
    container: str = ""
    parent: str = ""
    payer: str = ""
    awaits: list[str] = field(default_factory=list)
    agents: list[str] = field(default_factory=list)
    last: str = ""
    closing: bool = False
    ended: bool = False
    sums: dict[str, float] = field(default_factory=dict)
    """By kind and name: `u:` of the active turn, `f:` of the agents that it has started, `t:` of an agent's whole thread."""
    waiting: dict[str, Waiting] = field(default_factory=dict)
    records: dict[int, bytes] = field(default_factory=dict)
    answers: dict[str, tuple[str, str, str, str]] = field(default_factory=dict)
    texts: dict[str, OpenItem] = field(default_factory=dict)


def id_order(stream_id: str) -> tuple[int, int]:
    ms, _, number = stream_id.partition("-")
    return int(ms), int(number or 0)


FIELDS = (
    "tenant",
    "task",
    "status",
    "turn",
    "next",
    "fence",
    "worker",
    "spec",
    "title",
    "trimmed",
    "container",
    "segment",
    "why",
    "crashes",
    "parent",
    "kind",
)


class MemoryState:
    """All threads of one shard."""

    def __init__(self, now_ms: Callable[[], int] | None = None) -> None:
        self._now_ms = now_ms or (lambda: time.time_ns() // 1_000_000)
        self.available = True
        self._threads: dict[str, MemoryThread] = {}
        self._ready: dict[str, dict[str, int]] = {}
        self._tenants: dict[str, int] = {}
        self._served: dict[str, int] = {}
        self._clock = 0
        self._leases: dict[str, int] = {}
        self._parked: dict[str, int] = {}
        self._dirty: dict[str, int] = {}
        self._claims: dict[str, str] = {}
        self._streams: dict[str, list[StreamEntry]] = {}
        self._news = asyncio.Event()
        self._sequence = 0

    def _stream_id(self) -> str:
        self._sequence += 1
        return f"1-{self._sequence}"

    def _xadd(self, name: str, fields: Mapping[bytes, bytes]) -> None:
        entries = self._streams.setdefault(name, [])
        entries.append(StreamEntry(self._stream_id(), fields))
        del entries[:-_FIRE_LENGTH]
        self._news.set()

    def _held(self, thread: str, fence: str) -> bool:
        known = self._threads.get(thread)
        return known is not None and str(known.fence) == fence and thread in self._leases

    def _drop_lease(self, thread: str) -> None:
        self._leases.pop(thread, None)
        self._threads[thread].worker = ""

    def _make_ready(self, thread: str, why: str | None) -> None:
        t = self._threads[thread]
        t.status = "queued"
        t.why = why or t.why
        self._parked.pop(thread, None)
        self._ready.setdefault(t.tenant, {}).setdefault(thread, self._now_ms() + t.prio * _AGING_MS)
        if t.tenant not in self._tenants:
            self._tenants[t.tenant] = max(self._served.get(t.tenant, 0), self._clock)

    def _make_idle(self, thread: str) -> None:
        t = self._threads[thread]
        t.status = "idle"
        self._parked.pop(thread, None)
        self._ready.get(t.tenant, {}).pop(thread, None)

    def _append(self, thread: str, line: bytes, *, is_event: bool) -> None:
        t = self._threads[thread]
        t.records[t.next] = line
        if is_event:
            fields = {b"t": thread.encode(), b"n": t.tenant.encode(), b"o": b"%d" % t.next}
            self._xadd("fire", fields | ({b"l": line} if len(line) <= _FIRE_BODY else {}))
        t.next += 1
        self._dirty.setdefault(thread, self._now_ms())

    def _decide(self, thread: str, payload: Mapping[str, Any], submission: str, turn: str) -> None:
        line = {
            "timestamp": self._now_ms(),
            "ordinal": self._threads[thread].next,
            "submission_id": submission or None,
            "turn_id": turn or None,
            "type": "event_msg",
            "payload": payload,
        }
        self._append(thread, json.dumps(line, separators=(",", ":")).encode(), is_event=True)

    def _clear_turn(self, t: MemoryThread) -> None:
        t.turn = t.kind = t.schema = ""
        t.segment = t.crashes = 0
        t.sums = {name: value for name, value in t.sums.items() if name.startswith("t:")}

    def _begin_turn(self, thread: str, turn: str, kind: str, schema: str, submitted_at: int) -> None:
        t = self._threads[thread]
        self._clear_turn(t)
        t.turn, t.kind, t.schema, t.turn_at, t.why = turn, kind, schema, submitted_at, "new"
        t.segment = 1 if thread in self._leases else 0

    def _publish(self, thread: str, fence: str, entry: Args, head: bytes, text: bytes) -> None:
        t = self._threads[thread]
        item, offset = str(entry["k"]), int(entry["o"])
        fields = {b"t": thread.encode(), b"f": fence.encode(), b"k": item.encode(), b"o": b"%d" % offset, b"h": head}
        if entry.get("n"):
            self._xadd("fire", fields)
            t.texts[item] = OpenItem(fence, 0, head, None)
            return
        self._xadd("fire", fields | {b"x": text})
        stored = t.texts.get(item)
        if entry.get("r") or offset == 0 or stored is None or stored.text is None:
            t.texts[item] = OpenItem(fence, offset, head, text)
        else:
            stored.text += text

    def _guard(self, a: Args, verb: str | None) -> Reply | None:
        t = self._threads[a["thread"]]
        once = f"{verb}:{a['fence']}:{a['first']}:{a.get('turn', '')}="
        if verb and t.last.startswith(once):
            return [t.last[len(once) :].encode()]
        if not self._held(a["thread"], a["fence"]):
            return [b"FENCED"]
        if t.next == a["first"]:
            return None
        if t.next == a["first"] + len(a["events"]) and not verb:
            return [b"OK"]
        return [b"GAP", t.next]

    def _answer(self, a: Args, verb: str, answer: str) -> Reply:
        self._threads[a["thread"]].last = f"{verb}:{a['fence']}:{a['first']}:{a.get('turn', '')}={answer}"
        return [answer.encode()]

    def _charge(self, thread: str, used: Mapping[str, float]) -> None:
        t = self._threads[thread]
        _add(t, "u:", used)
        while t.parent:
            _add(t, "t:", used)
            parent = self._threads[t.parent]
            if parent.turn != t.payer:
                return
            _add(parent, "f:", used)
            t = parent

    def _write(self, a: Args, blobs: Sequence[bytes]) -> None:
        t, lines = self._threads[a["thread"]], len(a["events"])
        for i, entry in enumerate(a.get("live", [])):
            self._publish(a["thread"], a["fence"], entry, blobs[lines + 2 * i], blobs[lines + 2 * i + 1])
        for i, is_event in enumerate(a["events"]):
            self._append(a["thread"], blobs[i], is_event=is_event == 1)
        for item in a.get("closed", []):
            t.texts.pop(item, None)
        for stream_id in a.get("consumed", []):
            t.waiting.pop(stream_id, None)
        used = dict(a.get("totals", {})) | ({"cost": float(a["cost"])} if "cost" in a else {})
        if used:
            self._charge(a["thread"], used)
        if "container" in a:
            t.container = a["container"]


def _add(t: MemoryThread, kind: str, used: Mapping[str, float]) -> None:
    for name, amount in used.items():
        t.sums[kind + name] = t.sums.get(kind + name, 0) + amount


def admission(a: Args, turn: str, kind: str, schema: str) -> tuple[str, str]:
    """The answer and its turn or reason, in the decided order of checks."""
    match a["class"]:
        case "input" if not turn:
            if a["mode"] == "steer":
                return "not_submitted", "no_active_turn"
            return ("not_submitted", "empty_input") if a["empty"] else ("started", a["id"])
        case "input":
            checks = (
                (a["mode"] == "start_if_idle", "not_idle"),
                (a["mode"] == "steer" and a.get("expected") != turn, "expected_turn_mismatch"),
                (kind != "regular", "active_turn_not_steerable"),
                (a["empty"], "empty_input"),
                (a.get("schema", schema) != schema, "output_schema_mismatch"),
            )
            return next((("not_submitted", reason) for failed, reason in checks if failed), ("steered", turn))
        case "exclusive_turn":
            return ("not_submitted", "not_idle") if turn else ("started", a["id"])
        case "turn_or_op":
            return ("applied", "") if turn else ("started", a["id"])
        case "message":
            return ("started", a["id"]) if not turn else ("steered", turn) if kind == "regular" else ("applied", "")
        case "for_turn" | "interrupt" if not turn:
            return "not_submitted", "no_active_turn"
        case "for_turn" | "interrupt" if a.get("expected", turn) != turn:
            return "not_submitted", "expected_turn_mismatch"
        case _:
            return "applied", ""
