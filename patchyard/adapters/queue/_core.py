"""The queue core: one object per process, all decisions taken in the scripts of `lua/`."""

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from patchyard.protocol.errors import NotSubmittedReason
from patchyard.protocol.ops import Admission, Applied, NotSubmitted, Started, Steered, Submission, SubmissionReceipt

from ._admission import is_control, sort_op
from ._backend import Backend, Reply, StreamEntry
from ._health import judge
from ._live import LiveBuffer, LiveFlusher
from ._replies import claim_of, decode, flush_candidates, lines_of, snapshot_of, state_of
from ._types import (
    Claim,
    CommittedLine,
    FireEntry,
    FlushCandidate,
    QueueHealth,
    ReapResult,
    Snapshot,
    ThreadRegistration,
    ThreadState,
)
from .errors import QueueFull, QueueMisuse, ThreadClosedError, ThreadNotFound

if TYPE_CHECKING:
    from ._channel import QueueThreadChannel

ORDINARY_PLACES = 512
"""Submissions that may wait in one thread."""
CONTROL_PLACES = 64
"""Further places for CONTROL_OPS, so that a flooded thread can be stopped and answered."""
IDEMPOTENCY_TTL_S = 7 * 24 * 3600
"""A client that repeats a submission does so within days; the keys of a thread expire together after its last submission."""
READ_BLOCK_MS = 2000
"""Longest wait of a blocking read: well below the socket's timeout, so that a dead connection is noticed."""
FIRE_PAGE = 500
"""Firehose entries per read."""


class QueueCore:
    """Submission queues, event queues and leases of all threads of one Redis. Safe for one event loop."""

    def __init__(
        self,
        url: str,
        *,
        lease_ttl_s: float = 30,
        tenant_cap: int = 1000,
        repository_cap: int = 1000,
        allow_volatile: bool = False,
        shard: int = 0,
        backend: Backend | None = None,
    ) -> None:
        self._url = url
        self._shard = shard
        self._backend = backend
        self._allow_volatile = allow_volatile
        self._flusher: LiveFlusher | None = None
        self.lease_ttl_s = lease_ttl_s
        self._caps = {"tenant_cap": tenant_cap, "repository_cap": repository_cap}
        self.channels: WeakValueDictionary[str, QueueThreadChannel] = WeakValueDictionary()
        """Open channels of this process by thread id."""

    async def open(self) -> None:
        """Connect. QueueUnavailable when the server does not answer."""
        if self._backend is None:
            # Imported here: the in-memory double needs everything else of this package, but not the redis library.
            from ._redis import RedisBackend

            self._backend = RedisBackend(self._url, shard=self._shard)
        await self._backend.server_facts()

    async def close(self) -> None:
        """Drop all connections."""
        if self._flusher is not None:
            await self._flusher.close()
        if self._backend is not None:
            await self._backend.close()

    @property
    def live_flusher(self) -> LiveFlusher:
        """Sends live texts of all channels of this process."""
        if self._flusher is None:
            self._flusher = LiveFlusher(self.backend)
        return self._flusher

    def new_live_buffer(self, claim: Claim) -> LiveBuffer:
        """The buffer of a new channel."""
        return LiveBuffer(claim.tenant_id, claim.thread_id)

    @property
    def backend(self) -> Backend:
        """The open server."""
        if self._backend is None:
            raise QueueMisuse("QueueCore is not open: await open() first")
        return self._backend

    async def check(self) -> QueueHealth:
        """Version and durability settings of the server, each problem with its remedy."""
        return judge(await self.backend.server_facts(), allow_volatile=self._allow_volatile)

    # --- submitting

    async def submit(
        self, submission: Submission, *, registration: ThreadRegistration | None = None, priority: int = 5
    ) -> SubmissionReceipt:
        """Accept a submission, or answer why not. `registration` creates the thread when it is new; `priority` 0 is the first.

        Repeating it with the same submission id or idempotency key is safe and gives the first answer.
        Errors: QueueFull, ThreadClosedError (also when the turn of the registration's parent is over), ThreadNotFound,
        QueueUnavailable (nothing accepted, or safe to repeat).
        """
        key = submission.idempotency_key
        args = {
            "thread": submission.thread_id,
            "tenant": submission.tenant_id,
            "id": submission.id,
            "idem": f"i:{submission.id}" if key is None else f"k:{key}",
            "idem_ttl": IDEMPOTENCY_TTL_S,
            "op": submission.op.type,
            "prio": max(0, min(9, priority)),
            "submitted_at": submission.submitted_at,
            "places": ORDINARY_PLACES + (CONTROL_PLACES if is_control(submission) else 0),
            **sort_op(submission).as_args(),
        }
        if registration is not None:
            args["reg"] = {
                "task": registration.task_id or "",
                "repo": registration.repository,
                "spec": registration.spec_json,
                "title": registration.title,
            }
            if registration.parent is not None:
                args["reg"] |= {"parent": registration.parent.thread_id, "payer": registration.parent.turn_id}
        reply = await self.backend.run("submit", args, [submission.model_dump_json().encode()])
        return _receipt(submission, reply)

    async def thread_state(self, thread_id: str) -> ThreadState | None:
        """A thread's state; None when it is not known."""
        return state_of(thread_id, await self.backend.run("read", {"what": "state", "thread": thread_id}))

    # --- working

    async def claim(self, worker_id: str) -> Claim | None:
        """Take the thread whose turn it is: fair over tenants, by priority, within the caps. None: nothing to do."""
        asked_at = time.monotonic()
        args = {"worker": worker_id, "ttl": self._ttl_ms, "token": uuid.uuid4().hex, **self._caps}
        return claim_of(await self.backend.run("claim", args), leased_at=asked_at)

    async def beat(self, worker_id: str, held: Mapping[str, int]) -> Sequence[str]:
        """Renew the leases of a process, given as thread id to fence. Answers the threads whose lease is lost."""
        if not held:
            return []
        asked_at = time.monotonic()
        pairs = [[thread, str(fence)] for thread, fence in held.items()]
        reply = await self.backend.run("beat", {"worker": worker_id, "ttl": self._ttl_ms, "held": pairs}, retry=False)
        lost = [thread.decode() for thread in reply[1]]
        for thread in held:
            channel = self.channels.get(thread)
            if channel is None or channel.fence != held[thread]:
                continue
            if thread in lost:
                channel.mark_lost()
            else:
                channel.renewed(asked_at)
        return lost

    async def reap(self) -> ReapResult:
        """Make threads of silent workers ready again, and parked ones whose time has come.

        After a restart of the server it waits one TTL, so that workers can renew what they hold.
        """
        reply = await self.backend.run("reap", {"ttl": self._ttl_ms, "limit": 500})
        return ReapResult(reaped=[thread.decode() for thread in reply[1]], ready=reply[2], running=reply[3])

    # --- reading and trimming

    async def read_lines(self, thread_id: str, *, after: int | None, limit: int) -> list[CommittedLine]:
        """Committed records after an ordinal (None: from the first that is still in the stream), oldest first."""
        args = {"what": "lines", "thread": thread_id, "after": -1 if after is None else after, "limit": limit}
        return lines_of((await self.backend.run("read", args))[1])

    async def trim(self, thread_id: str, through_ordinal: int) -> None:
        """Drop records up to and with an ordinal from the stream. Only what the object store has confirmed."""
        await self.backend.run("trim", {"thread": thread_id, "through": through_ordinal})

    async def threads_to_flush(self, *, limit: int = 100) -> Sequence[FlushCandidate]:
        """Threads with records that the object store has not confirmed, oldest first."""
        return flush_candidates(await self.backend.run("read", {"what": "dirty", "limit": limit}))

    # --- what the event hub reads (see streams.EventSource)

    async def snapshot(self, thread_id: str, *, after: int | None, limit: int) -> Snapshot:
        """Records after an ordinal, and the text so far of the open items, read in one step."""
        args = {"what": "snapshot", "thread": thread_id, "after": -1 if after is None else after, "limit": limit}
        return snapshot_of(await self.backend.run("read", args))

    async def fire_position(self) -> str:
        """Id of the firehose's newest entry."""
        return (await self.backend.bounds("fire")).newest

    async def fire_oldest(self) -> str:
        """Id of the firehose's oldest entry: a reader whose position is older has missed something."""
        return (await self.backend.bounds("fire")).oldest

    async def read_fire(self, after_id: str) -> Sequence[FireEntry]:
        """The firehose after an id; waits up to 2 s for news."""
        entries = await self.backend.read_stream("fire", after_id, count=FIRE_PAGE, block_ms=READ_BLOCK_MS)
        return [_fire_entry(entry) for entry in entries]

    @property
    def _ttl_ms(self) -> int:
        return int(self.lease_ttl_s * 1000)


def _receipt(submission: Submission, reply: Reply) -> SubmissionReceipt:
    status = decode(reply[0])
    if status == "NOT_FOUND":
        raise ThreadNotFound(submission.thread_id)
    if status == "CLOSED":
        raise ThreadClosedError(submission.thread_id)
    if status == "FULL":
        raise QueueFull(int(reply[1]))
    submission_id, kind, value, turn = (decode(part) for part in reply[1:5])
    admission: Admission
    match kind:
        case "started":
            admission = Started(turn_id=value)
        case "steered":
            admission = Steered(turn_id=value)
        case "applied":
            admission = Applied()
        case _:
            admission = NotSubmitted(reason=NotSubmittedReason(value), active_turn_id=turn or None)
    return SubmissionReceipt(submission_id=submission_id, admission=admission, duplicate=status == "KNOWN")


def _fire_entry(entry: StreamEntry) -> FireEntry:
    fields = entry.fields
    ordinal = fields.get(b"o")
    durable = b"k" not in fields
    return FireEntry(
        id=entry.id,
        thread_id=fields[b"t"].decode(),
        tenant_id=fields.get(b"n", b"").decode(),
        ordinal=int(ordinal) if durable and ordinal is not None else None,
        line=fields.get(b"l"),
        item_key=fields.get(b"k", b"").decode(),
        offset=0 if durable or ordinal is None else int(ordinal),
        fence=int(fields.get(b"f", b"0")),
        head=fields.get(b"h", b""),
        text=fields.get(b"x"),
    )
