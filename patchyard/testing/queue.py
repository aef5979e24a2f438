"""In-memory double of the queue: the same core, channel and event source over scripts written in Python.

`MemoryQueueCore()` is a QueueCore that needs no server and no redis library. The conformance suite runs over it and over
the Lua scripts; every rule has one test for both. Strict: an unknown script, argument or thread is an error.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from patchyard.adapters.queue import QueueCore, QueueUnavailable
from patchyard.adapters.queue._backend import Reply, ScriptName, StreamBounds, StreamEntry

from ._queue_ends import MemoryEnds
from ._queue_state import FIELDS, Args, MemoryThread, Waiting, admission, id_order


class MemoryBackend(MemoryEnds):
    """The scripts on plain dictionaries. `now_ms` is the server's clock; `available` False makes every call fail."""

    # --- Backend

    async def run(self, script: ScriptName, args: Args, blobs: Sequence[bytes] = (), *, retry: bool = True) -> Reply:
        """See Backend. The arguments pass through JSON, as on the wire."""
        del retry
        if not self.available:
            raise QueueUnavailable("the double was told to be away")
        wire = json.loads(json.dumps(args))
        call: Callable[[Args, Sequence[bytes]], Reply] = getattr(self, f"_{script}")
        return call(wire, blobs)

    async def read_stream(self, name: str, after: str, *, count: int, block_ms: int) -> Sequence[StreamEntry]:
        """See Backend."""
        until = time.monotonic() + block_ms / 1000
        while True:
            if not self.available:
                raise QueueUnavailable("the double was told to be away")
            found = [e for e in self._streams.get(name, []) if id_order(e.id) > id_order(after)][:count]
            left = until - time.monotonic()
            if found or left <= 0:
                return found
            self._news.clear()
            try:
                async with asyncio.timeout(left):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def bounds(self, name: str) -> StreamBounds:
        """See Backend."""
        if not self.available:
            raise QueueUnavailable("the double was told to be away")
        entries = self._streams.get(name)
        return StreamBounds(entries[0].id, entries[-1].id) if entries else StreamBounds("0-0", "0-0")

    async def server_facts(self) -> Mapping[str, str]:
        """See Backend: what a good server would say."""
        if not self.available:
            raise QueueUnavailable("the double was told to be away")
        settings = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
        return {"redis_version": "7.0.0", "no-appendfsync-on-rewrite": "no", **settings}

    async def close(self) -> None:
        """See Backend."""

    # --- the scripts

    def _submit(self, a: Args, blobs: Sequence[bytes]) -> Reply:
        t = self._threads.get(a["thread"])
        if t is not None and t.tenant != a["tenant"]:
            return [b"NOT_FOUND"]
        if t is not None and a["idem"] in t.answers:
            return [b"KNOWN", *(part.encode() for part in t.answers[a["idem"]])]
        if t is None and "reg" not in a:
            return [b"NOT_FOUND"]
        if t is not None and (t.status == "closed" or t.closing):
            return [b"CLOSED"]
        turn = t.turn if t else ""
        answer, value = admission(a, turn, t.kind if t else "", t.schema if t else "")
        first = (str(a["id"]), answer, value, turn)
        if answer == "not_submitted":
            return [b"OK", *(part.encode() for part in first)]
        lease = a["thread"] in self._leases
        decided = a["class"] in ("interrupt", "shutdown") and not lease
        if t is not None and len(t.waiting) >= a["places"] and not decided:
            return [b"FULL", len(t.waiting)]
        if t is None:
            if not self._may_register(a):
                return [b"CLOSED"]
            t = self._register(a)
        t.answers[a["idem"]] = first
        if decided:
            self._decide_here(a, t, turn)
        else:
            self._enqueue(a, t, answer, turn, blobs[0])
        return [b"OK", *(part.encode() for part in first)]

    def _may_register(self, a: Args) -> bool:
        if "parent" not in a["reg"]:
            return True
        parent = self._threads.get(a["reg"]["parent"])
        return parent is not None and (parent.tenant, parent.turn) == (a["tenant"], a["reg"]["payer"])

    def _register(self, a: Args) -> MemoryThread:
        reg = a["reg"]
        t = MemoryThread(a["tenant"], reg["task"], reg["repo"], reg["spec"], reg["title"], a["prio"])
        self._threads[a["thread"]] = t
        if "parent" in reg:
            t.parent, t.payer = reg["parent"], reg["payer"]
            self._threads[t.parent].agents.append(a["thread"])
        return t

    def _decide_here(self, a: Args, t: MemoryThread, turn: str) -> None:
        if a["class"] == "shutdown":
            self._close_here(a["thread"], a["id"])
            return
        if turn:
            self._interrupt_here(a["thread"], a["id"])
        if t.waiting:
            self._promote(a["thread"])
            self._make_ready(a["thread"], "new")
        else:
            self._make_idle(a["thread"])

    def _enqueue(self, a: Args, t: MemoryThread, answer: str, turn: str, text: bytes) -> None:
        role, belongs, starts = "op", "", ""
        if answer == "started":
            role, belongs = "start", a["id"]
            self._begin_turn(a["thread"], a["id"], a["kind"], a.get("schema", ""), a["submitted_at"])
            t.prio = a["prio"]
        elif answer == "steered":
            role, belongs = "steer", turn
        elif a["class"] in ("turn_or_op", "message"):
            starts = a["kind"]
        elif a["class"] != "op":
            role, belongs = "control", turn
        t.closing = t.closing or a["class"] == "shutdown"
        t.waiting[self._stream_id()] = Waiting(a["id"], role, belongs, starts, a["op"], a["submitted_at"], text)
        if a["thread"] in self._leases:
            self._xadd(f"ctl:{t.worker}", {b"t": str(a["thread"]).encode()})
        elif t.status != "queued":
            self._make_ready(a["thread"], "unparked" if t.status == "parked" else None)

    def _claim(self, a: Args, _blobs: Sequence[bytes]) -> Reply:
        if a["token"] in self._claims:
            return [b"OK", self._claims[a["token"]].encode(), self._fields(self._claims[a["token"]])]
        for tenant, start in sorted(self._tenants.items(), key=lambda pair: (pair[1], pair[0])):
            ready = self._ready.get(tenant, {})
            if not ready:
                del self._tenants[tenant]
            elif self._running(tenant=tenant) < a["tenant_cap"]:
                for thread in sorted(ready, key=lambda name: (ready[name], name)):
                    if not self._repo_is_full(thread, a["repository_cap"]):
                        return self._take(a, tenant, start, thread)
        return [b"NONE"]

    def _running(self, *, tenant: str, repo: str | None = None) -> int:
        now = self._now_ms()
        live = [self._threads[name] for name, expiry in self._leases.items() if expiry > now]
        return sum(1 for t in live if t.tenant == tenant and repo in (None, t.repo))

    def _repo_is_full(self, thread: str, cap: int) -> bool:
        t = self._threads[thread]
        return bool(t.repo) and self._running(tenant=t.tenant, repo=t.repo) >= cap

    def _take(self, a: Args, tenant: str, start: int, thread: str) -> Reply:
        t = self._threads[thread]
        del self._ready[tenant][thread]
        t.fence += 1
        t.worker, t.status = a["worker"], "running"
        t.segment += 1 if t.turn else 0
        self._leases[thread] = self._now_ms() + a["ttl"]
        t.texts.clear()
        self._tenants[tenant] = self._served[tenant] = start + 1
        self._clock = start
        self._claims[a["token"]] = thread
        return [b"OK", thread.encode(), self._fields(thread)]

    def _beat(self, a: Args, _blobs: Sequence[bytes]) -> Reply:
        lost = []
        for thread, fence in a["held"]:
            if self._held(thread, fence):
                self._leases[thread] = self._now_ms() + a["ttl"]
            else:
                lost.append(thread.encode())
        return [b"OK", lost]

    def _commit(self, a: Args, blobs: Sequence[bytes]) -> Reply:
        refused = self._guard(a, "close" if a.get("close") else None)
        if refused is not None:
            return refused
        self._write(a, blobs)
        if not a.get("close"):
            return [b"OK"]
        self._drop_lease(a["thread"])
        self._close_thread(a["thread"])
        return self._answer(a, "close", "CLOSED")

    def _finish_turn(self, a: Args, blobs: Sequence[bytes]) -> Reply:
        refused = self._guard(a, "finish")
        if refused is not None:
            return refused
        t = self._threads[a["thread"]]
        if t.turn != a["turn"]:
            return [b"WRONG_TURN", t.turn.encode()]
        if any(e.role == "steer" and e.turn == a["turn"] and n not in a["consumed"] for n, e in t.waiting.items()):
            return [b"STEER"]
        self._write(a, blobs)
        t.waiting = {n: e for n, e in t.waiting.items() if e.id != a["turn"]}
        self._end_turn(a["thread"], a["turn"])
        if a.get("close"):
            self._drop_lease(a["thread"])
            self._close_thread(a["thread"])
            return self._answer(a, "finish", "CLOSED")
        if t.waiting or a.get("keep"):
            self._promote(a["thread"])
            return [*self._answer(a, "finish", "MORE"), t.turn.encode()]
        self._drop_lease(a["thread"])
        self._make_idle(a["thread"])
        return self._answer(a, "finish", "IDLE")

    def _park(self, a: Args, blobs: Sequence[bytes]) -> Reply:
        refused = self._guard(a, "park")
        if refused is not None:
            return refused
        t = self._threads[a["thread"]]
        self._write(a, blobs)
        self._drop_lease(a["thread"])
        t.texts.clear()
        t.fence += 1
        t.awaits = list(a.get("awaits", []))
        over = any(name not in self._threads or not self._threads[name].turn for name in t.awaits)
        waking = ("control", "steer") if t.awaits else ("control",)
        unseen = any(id_order(name) > id_order(a["seen"]) for name in t.waiting)
        if a.get("ready"):
            self._make_ready(a["thread"], "hand_over")
        elif unseen or over or any(e.role in waking for e in t.waiting.values()):
            self._make_ready(a["thread"], "unparked")
        else:
            t.status = "parked"
            if "until" in a:
                self._parked[a["thread"]] = a["until"]
        return self._answer(a, "park", "PARKED" if t.status == "parked" else "READY")

    def _release(self, a: Args, _blobs: Sequence[bytes]) -> Reply:
        refused = self._guard(a, "release")
        if refused is not None:
            return refused
        t = self._threads[a["thread"]]
        if t.turn or t.waiting:
            return [b"ACTIVE" if t.turn else b"MORE"]
        self._drop_lease(a["thread"])
        self._make_idle(a["thread"])
        return self._answer(a, "release", "IDLE")

    def _reap(self, a: Args, _blobs: Sequence[bytes]) -> Reply:
        now = self._now_ms()
        reaped = [name for name, expiry in self._leases.items() if expiry <= now][: a["limit"]]
        for thread in reaped:
            t = self._threads[thread]
            self._drop_lease(thread)
            t.texts.clear()
            t.fence += 1
            if t.turn:
                t.crashes += 1
                self._make_ready(thread, "worker_lost")
            elif t.waiting:
                self._make_ready(thread, "new")
            else:
                self._make_idle(thread)
        for thread in [name for name, until in self._parked.items() if until <= now]:
            self._make_ready(thread, "unparked")
        ready = sum(len(threads) for threads in self._ready.values())
        return [b"OK", [thread.encode() for thread in reaped], ready, len(self._leases)]

    def _trim(self, a: Args, _blobs: Sequence[bytes]) -> Reply:
        t = self._threads.get(a["thread"])
        if t is not None and min(a["through"], t.next - 1) > t.trimmed:
            t.trimmed = min(a["through"], t.next - 1)
            t.records = {ordinal: line for ordinal, line in t.records.items() if ordinal > t.trimmed}
            self._dirty.pop(a["thread"], None)
            if t.trimmed < t.next - 1:
                self._dirty[a["thread"]] = self._now_ms()
        return [b"OK"]

    def _publish_live(self, a: Args, blobs: Sequence[bytes]) -> Reply:
        at = 0
        for thread, fence, entries in a["batches"]:
            for entry in entries:
                if self._held(thread, fence):
                    self._publish(thread, fence, entry, blobs[at], blobs[at + 1])
                at += 2
        return [b"OK"]

    def _read(self, a: Args, _blobs: Sequence[bytes]) -> Reply:
        what, t = a["what"], self._threads.get(a.get("thread", ""))
        match what:
            case "state":
                return [b"OK", self._fields(a["thread"]) if t else [], len(t.waiting) if t else 0]
            case "inbox":
                if t is None or not self._held(a["thread"], a["fence"]):
                    return [b"FENCED"]
                fresh = [(n, e) for n, e in t.waiting.items() if id_order(n) > id_order(a["seen"])]
                found = [[n.encode(), e.id.encode(), e.json, e.turn.encode()] for n, e in fresh]
                return [b"OK", found, t.turn.encode()]
            case "lines":
                return [b"OK", self._lines(t, a)]
            case "snapshot":
                return self._snapshot(t, a)
            case "dirty":
                oldest = sorted(self._dirty.items(), key=lambda pair: (pair[1], pair[0]))[: a["limit"]]
                return [b"OK", [[n.encode(), b"%d" % since, self._fields(n)] for n, since in oldest]]
            case _:
                raise ValueError(f"unknown read: {what}")

    def _snapshot(self, t: MemoryThread | None, a: Args) -> Reply:
        lines = self._lines(t, a)
        complete = len(lines) < a["limit"]
        fire = self._streams.get("fire")
        position = fire[-1].id.encode() if fire else b"0-0"
        fields = [*(self._fields(a["thread"]) if t else []), b"position", position]
        texts = t.texts if t is not None and complete else {}
        found = [
            [item.encode(), f"{o.fence} {o.offset} ".encode() + o.head, o.text if o.text is not None else b""]
            for item, o in texts.items()
        ]
        return [b"OK", lines, fields, int(complete), found]

    def _lines(self, t: MemoryThread | None, a: Args) -> list[Any]:
        wanted = [o for o in (t.records if t else {}) if o > a["after"]]
        records = t.records if t else {}
        return [[b"%d-0" % (o + 1), [b"l", records[o]]] for o in wanted[: a["limit"]]]

    def _fields(self, thread: str) -> list[Any]:
        t = self._threads[thread]
        fields = {name: str(getattr(t, name)) for name in FIELDS} | {name: str(value) for name, value in t.sums.items()}
        return [part.encode() for pair in fields.items() for part in pair]


class MemoryQueueCore(QueueCore):
    """A QueueCore without a server. `memory.available = False` takes the queue away."""

    def __init__(
        self,
        *,
        lease_ttl_s: float = 30,
        tenant_cap: int = 1000,
        repository_cap: int = 1000,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        self.memory = MemoryBackend(now_ms)
        super().__init__(
            "memory:",
            lease_ttl_s=lease_ttl_s,
            tenant_cap=tenant_cap,
            repository_cap=repository_cap,
            backend=self.memory,
        )


__all__ = ["MemoryBackend", "MemoryQueueCore"]
