"""Turns the scripts' answers into types."""

from collections.abc import Sequence
from typing import Any

from patchyard.protocol.model_items import TokenUsage

from ._backend import Reply
from ._types import Claim, ClaimReason, CommittedLine, FlushCandidate, OpenText, Snapshot, Spent, ThreadState, ThreadStatus

_REASONS: dict[str, ClaimReason] = {
    "new": "new",
    "worker_lost": "worker_lost",
    "hand_over": "hand_over",
    "unparked": "unparked",
}


def decode(value: Any) -> str:
    """Text of a reply's element."""
    return value.decode() if isinstance(value, bytes) else str(value)


def named(flat: Sequence[Any]) -> dict[str, str]:
    """A flat list of names and values as a mapping."""
    return {decode(flat[i]): decode(flat[i + 1]) for i in range(0, len(flat), 2)}


def state_of(thread_id: str, reply: Reply) -> ThreadState | None:
    """The state in a `read state` answer."""
    fields = named(reply[1])
    if not fields:
        return None
    return ThreadState(
        thread_id=thread_id,
        tenant_id=fields["tenant"],
        task_id=fields.get("task") or None,
        status=ThreadStatus(fields["status"]),
        active_turn_id=fields.get("turn") or None,
        next_ordinal=int(fields["next"]),
        fence=int(fields["fence"]),
        worker=fields.get("worker") or None,
        spec_json=fields.get("spec", ""),
        title=fields.get("title", ""),
        trimmed_through=_trimmed(fields),
        container=fields.get("container") or None,
        waiting=int(reply[2]),
        spent=_spent(fields, "t:") if fields.get("parent") else None,
    )


def claim_of(reply: Reply, *, leased_at: float) -> Claim | None:
    """The claim in a `claim` answer."""
    if decode(reply[0]) != "OK":
        return None
    fields = named(reply[2])
    segment = int(fields.get("segment", "0"))
    turn = fields.get("turn") or None
    return Claim(
        thread_id=decode(reply[1]),
        tenant_id=fields["tenant"],
        task_id=fields.get("task") or None,
        fence=int(fields["fence"]),
        leased_at=leased_at,
        next_ordinal=int(fields["next"]),
        active_turn_id=turn,
        spec_json=fields.get("spec", ""),
        title=fields.get("title", ""),
        segment=segment if turn else 0,
        reason=_REASONS[fields.get("why", "new")] if turn and segment > 1 else "new",
        crashes=int(fields.get("crashes", "0")),
        trimmed_through=_trimmed(fields),
        container=fields.get("container") or None,
        spent=_spent(fields, "u:", "f:"),
        turn_kind=fields.get("kind") or None,
    )


def lines_of(entries: Sequence[Any]) -> list[CommittedLine]:
    """Records of a thread's stream: entry id `<ordinal + 1>-0`, one field."""
    return [CommittedLine(int(entry[0].split(b"-")[0]) - 1, entry[1][1]) for entry in entries]


def snapshot_of(reply: Reply) -> Snapshot:
    """The answer of `read snapshot`."""
    fields = named(reply[2])
    return Snapshot(
        tenant_id=fields.get("tenant", ""),
        lines=lines_of(reply[1]),
        trimmed_through=_trimmed(fields),
        next_ordinal=int(fields.get("next", "0")),
        complete=bool(reply[3]),
        closed=fields.get("status") == ThreadStatus.CLOSED,
        position=fields.get("position", "0-0"),
        open_texts=[_open_text(part) for part in reply[4]],
    )


def flush_candidates(reply: Reply) -> list[FlushCandidate]:
    """The answer of `read dirty`."""
    found = []
    for thread, since, flat in reply[1]:
        fields = named(flat)
        trimmed = _trimmed(fields)
        found.append(
            FlushCandidate(
                thread_id=decode(thread),
                tenant_id=fields["tenant"],
                first_ordinal=0 if trimmed is None else trimmed + 1,
                next_ordinal=int(fields["next"]),
                since_ms=int(float(since)),
                status=ThreadStatus(fields["status"]),
            )
        )
    return found


def _open_text(part: Sequence[Any]) -> OpenText:
    item_key, meta, text = part
    fence, offset, head = meta.split(b" ", 2)
    return OpenText(item_key=decode(item_key), fence=int(fence), offset=int(offset), head=head, text=text or None)


def _spent(fields: dict[str, str], *kinds: str) -> Spent:
    """The sum of some kinds of totals."""

    def total(name: str) -> float | None:
        known = [float(fields[kind + name]) for kind in kinds if kind + name in fields]
        return sum(known) if known else None

    usage = TokenUsage(**{name: int(total(name) or 0) for name in TokenUsage.model_fields})
    return Spent(usage, total("cost"), int(total("requests") or 0), int(total("calls") or 0))


def _trimmed(fields: dict[str, str]) -> int | None:
    value = int(fields.get("trimmed") or -1)
    return None if value < 0 else value
