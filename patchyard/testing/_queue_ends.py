"""Ends of turns and threads in the in-memory queue; the counterpart of `lua/ends.lua`."""

from collections.abc import Mapping
from typing import Any

from patchyard.protocol.ids import TenantId
from patchyard.protocol.ops import Shutdown, Submission

from ._queue_state import TOTALS, MemoryState, MemoryThread, Waiting

_INTERRUPTED = "The turn was interrupted before this could be done."
_CLOSED = "The thread was closed before this could be done."


class MemoryEnds(MemoryState):
    """How a turn ends, and with it the agents that it has started."""

    def _promote(self, thread: str) -> None:
        for entry in self._threads[thread].waiting.values():
            if entry.starts:
                self._begin_turn(thread, entry.id, entry.starts, "", entry.submitted_at)
                return

    def _close_thread(self, thread: str) -> None:
        t = self._threads[thread]
        t.waiting.clear()
        self._make_idle(thread)
        t.texts.clear()
        self._clear_turn(t)
        t.status = "closed"

    def _end_turn(self, thread: str, sid: str) -> None:
        t = self._threads[thread]
        self._clear_turn(t)
        t.texts.clear()
        t.ended = True
        self._dismiss_agents(thread, sid)
        self._wake_parent(thread)

    def _wake_parent(self, thread: str) -> None:
        t = self._threads[thread]
        parent = self._threads.get(t.parent)
        if parent is not None and parent.status == "parked" and parent.turn == t.payer and thread in parent.awaits:
            self._make_ready(t.parent, "unparked")

    def _dismiss_agents(self, thread: str, sid: str) -> None:
        agents, self._threads[thread].agents = self._threads[thread].agents, []
        for agent in agents:
            self._dismiss(agent, sid)

    def _dismiss(self, thread: str, sid: str) -> None:
        t = self._threads[thread]
        if t.status == "closed":
            return
        if thread not in self._leases:
            self._close_here(thread, sid)
            return
        if not t.closing:
            t.closing = True
            tenant: TenantId = t.tenant
            now = self._now_ms()
            told = Submission(id=sid, tenant_id=tenant, thread_id=thread, op=Shutdown(), submitted_at=now)
            entry = Waiting(sid, "control", t.turn, "", "shutdown", now, told.model_dump_json().encode())
            t.waiting[self._stream_id()] = entry
            self._xadd(f"ctl:{t.worker}", {b"t": thread.encode()})
        self._dismiss_agents(thread, sid)

    def _close_here(self, thread: str, sid: str) -> None:
        t = self._threads[thread]
        if t.turn:
            self._interrupt_here(thread, sid)
        for entry in t.waiting.values():
            if entry.op == "shutdown":
                sid = entry.id
            else:
                self._decide(thread, _rejected(entry, _CLOSED), entry.id, "")
        self._decide(thread, {"type": "thread_closed"}, sid, "")
        self._close_thread(thread)

    def _interrupt_here(self, thread: str, sid: str) -> None:
        t = self._threads[thread]
        turn = t.turn
        gone = {name: e for name, e in t.waiting.items() if turn in (e.turn, e.id) and e.op != "shutdown"}
        for name, entry in gone.items():
            del t.waiting[name]
            if entry.role == "control":
                self._decide(thread, _rejected(entry, _INTERRUPTED), entry.id, turn)
        if t.task and not t.ended:
            changed = {"type": "task_status_changed", "status": "cancelled", "reason": "interrupted", "error": None}
            self._decide(thread, changed, sid, turn)
        interrupted = {
            "type": "turn_interrupted",
            **_sums(t),
            "duration_ms": max(0, self._now_ms() - t.turn_at),
            "dropped_submission_ids": [e.id for e in gone.values() if e.role == "steer"],
        }
        self._decide(thread, interrupted, sid, turn)
        self._end_turn(thread, sid)


def _rejected(entry: Waiting, message: str) -> Mapping[str, Any]:
    return {"type": "op_rejected", "op": entry.op, "reason": None, "message": message}


def _sums(t: MemoryThread) -> Mapping[str, Any]:
    def total(name: str) -> float | None:
        known = [t.sums[kind + name] for kind in ("u:", "f:") if kind + name in t.sums]
        return sum(known) if known else None

    return {
        "usage": {name: total(name) or 0 for name in TOTALS},
        "cost_usd": total("cost"),
        "model_requests": total("requests") or 0,
        "tool_calls": total("calls") or 0,
    }
