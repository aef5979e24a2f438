"""What the queue core answers. Times are milliseconds since the epoch by the Redis server's clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

from patchyard.protocol.model_items import TokenUsage


class ThreadStatus(StrEnum):
    """Where a thread is."""

    IDLE = "idle"
    QUEUED = "queued"
    RUNNING = "running"
    PARKED = "parked"
    CLOSED = "closed"


ClaimReason = Literal["new", "worker_lost", "hand_over", "unparked"]
"""`new`: nothing to recover. The others are the reasons of TurnRecovered."""


@dataclass(frozen=True)
class ThreadRegistration:
    """What a thread's first submission brings along. Ignored when the thread exists."""

    task_id: str | None = None
    repository: str = ""
    """Key of the repository's cap; empty: no such cap."""
    spec_json: str = ""
    """The TaskSpec, so that a worker needs no catalog."""
    title: str = ""
    parent: "ParentTurn | None" = None
    """The turn whose agent this thread serves: it ends with that turn, and what it uses is part of that turn's use."""


class ParentTurn(NamedTuple):
    """A turn that has agents of its own."""

    thread_id: str
    turn_id: str


@dataclass(frozen=True)
class Spent:
    """What was used, with all agents below."""

    usage: TokenUsage
    cost_usd: float | None
    """None: no request had a known price."""
    model_requests: int
    tool_calls: int


@dataclass(frozen=True)
class ThreadState:
    """A thread as the queue knows it."""

    thread_id: str
    tenant_id: str
    task_id: str | None
    status: ThreadStatus
    active_turn_id: str | None
    """An accepted turn counts as active before a worker claims it."""
    next_ordinal: int
    fence: int
    worker: str | None
    """The lease holder; None without a lease."""
    spec_json: str
    title: str
    trimmed_through: int | None
    """Last ordinal that is no longer in the stream; None: all are there."""
    container: str | None
    waiting: int
    """Submissions that were accepted and not consumed."""
    spent: Spent | None = None
    """What the whole thread has used so far, with its agents. Known of threads that serve another one's agent."""


@dataclass(frozen=True)
class Claim:
    """A thread that this worker owns until the lease ends."""

    thread_id: str
    tenant_id: str
    task_id: str | None
    fence: int
    leased_at: float
    """Monotonic seconds of this process when the claim was asked for; the lease began later."""
    next_ordinal: int
    active_turn_id: str | None
    spec_json: str
    title: str
    segment: int
    """1 for the first claim of the active turn; 0 without a turn."""
    reason: ClaimReason
    crashes: int
    """How many workers died while they ran the active turn."""
    trimmed_through: int | None
    container: str | None
    spent: Spent
    """What the active turn has used so far, with its agents."""
    turn_kind: str | None
    """Kind of the active turn."""


@dataclass(frozen=True)
class ReapResult:
    """What the reaper did."""

    reaped: Sequence[str]
    """Threads whose worker went silent; ready again, or idle when they had nothing to do."""
    ready: int
    """Threads that wait for a worker now."""
    running: int
    """Live leases."""


class CommittedLine(NamedTuple):
    """One committed record."""

    ordinal: int
    json: bytes
    """The RolloutLine as compact JSON in UTF-8, without a newline."""


@dataclass(frozen=True)
class FlushCandidate:
    """A thread with committed records that the object store has not confirmed."""

    thread_id: str
    tenant_id: str
    first_ordinal: int
    """First record that is still in the stream only."""
    next_ordinal: int
    since_ms: int
    """When the oldest unconfirmed record was committed, to within one flush."""
    status: ThreadStatus


class Problem(NamedTuple):
    """Something wrong with the server, and what to do."""

    problem: str
    remedy: str


@dataclass(frozen=True)
class QueueHealth:
    """Whether the Redis server may hold the queue."""

    server: str
    """`redis` or `valkey`."""
    version: str
    appendonly: bool
    appendfsync: str
    maxmemory_policy: str
    problems: Sequence[Problem]
    """Empty: it may."""
    volatile_allowed: bool = False
    """True: the durability problems were waived for development."""

    @property
    def usable(self) -> bool:
        """Whether the service may start with it."""
        return not self.problems or self.volatile_allowed


@dataclass(frozen=True)
class OpenText:
    """Text so far of an item that is still open."""

    item_key: str
    """Item and kind of delta."""
    fence: int
    offset: int
    """Where `text` begins, in bytes of the item's whole text as escaped JSON."""
    head: bytes
    """JSON of a live Event up to its delta; the whole Event when `text` is None."""
    text: bytes | None
    """The delta as escaped JSON, without quotes."""


@dataclass(frozen=True)
class Snapshot:
    """A thread's records and open texts at one moment."""

    tenant_id: str
    lines: Sequence[CommittedLine]
    trimmed_through: int | None
    next_ordinal: int
    complete: bool
    """True: `lines` reaches the newest record, and `open_texts` belongs to that moment."""
    open_texts: Sequence[OpenText]
    closed: bool
    """Whether the thread was closed."""
    position: str
    """Newest entry of the firehose at that moment: what came before it is in here."""


@dataclass(frozen=True)
class FireEntry:
    """One entry of the firehose: a committed event (ordinal set) or a live-only one (item_key set)."""

    id: str
    thread_id: str
    tenant_id: str
    ordinal: int | None
    line: bytes | None
    """RolloutLine of a committed event; None: too big for the firehose, read it from the thread's stream."""
    item_key: str
    offset: int
    fence: int
    head: bytes
    text: bytes | None
