"""A thread under this worker's lease: what the agent core reads from and writes to."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from patchyard.agent.ports import LeaseLost
from patchyard.protocol.events import LiveMsg
from patchyard.protocol.ops import Submission
from patchyard.protocol.rollout_lines import LinePayload

from ._backend import Reply, ScriptName
from ._core import QueueCore
from ._encode import encode
from ._replies import decode
from ._types import Claim
from .errors import LeaseReleased, QueueMisuse, QueueUnavailable

POLL_S = 10.0
"""News come through the control stream; a look without news costs one call and heals a lost one."""
RETRY_S = 0.2
"""Pause between tries while the server is away, beyond those of the connection itself."""


class WaitingSubmission(NamedTuple):
    """A submission that was not consumed yet."""

    stream_id: str
    submission: Submission
    turn_id: str
    """The turn that it was accepted for; empty: for none."""


def wall_clock_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class QueueThreadChannel:
    """Implements `agent.ports.ThreadChannel` over the queue core. One per claim; for one event loop."""

    def __init__(
        self,
        core: QueueCore,
        claim: Claim,
        *,
        now_ms: Callable[[], int] = wall_clock_ms,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.thread_id = claim.thread_id
        self.fence = claim.fence
        self.active_turn_id = claim.active_turn_id
        self.lock = asyncio.Lock()
        """Held while records or live texts are on their way: keeps their order."""
        self.live_buffer = core.new_live_buffer(claim)
        self._core = core
        self._now_ms = now_ms
        self._monotonic = monotonic
        self._next = claim.next_ordinal
        self._deadline = claim.leased_at + core.lease_ttl_s
        self._inbox: deque[WaitingSubmission] = deque()
        self._stream_ids: dict[str, str] = {}
        self._seen = "0-0"
        self._wake = asyncio.Event()
        self._end: type[LeaseLost] | None = None
        self._kept = False
        """The lease is kept without a turn: something of the last one still runs."""
        core.channels[claim.thread_id] = self

    # --- the port

    async def receive(self) -> Submission:
        """See the port. Without an active turn and without anything to do the lease is given back: LeaseReleased."""
        while True:
            self._raise_if_ended()
            if self._inbox:
                return self._inbox.popleft().submission
            self._wake.clear()
            if await self._fetch() or await self._released_when_idle():
                continue
            try:
                async with asyncio.timeout(POLL_S):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def commit(
        self,
        payloads: Sequence[LinePayload],
        *,
        turn_id: str | None = None,
        submission_id: str | None = None,
        consumed: Sequence[str] = (),
    ) -> None:
        """See the port. A ThreadClosed among the records closes the thread and ends the lease."""
        await self._write("commit", payloads, turn_id=turn_id, submission_id=submission_id, consumed=consumed)

    async def finish_turn(
        self,
        payloads: Sequence[LinePayload],
        *,
        turn_id: str,
        consumed: Sequence[str] = (),
        answers: Mapping[str, Sequence[LinePayload]] | None = None,
        keep_lease: bool = False,
    ) -> bool:
        """See the port. When nothing else waits and it is not kept, the lease ends with it: `receive` raises LeaseReleased."""
        extra = {"keep": True} if keep_lease else {}
        self._kept = keep_lease
        status = await self._write("finish_turn", payloads, turn_id=turn_id, consumed=consumed, answers=answers, extra=extra)
        return status != "STEER"

    async def park(
        self,
        payloads: Sequence[LinePayload],
        *,
        turn_id: str,
        until_ms: int | None = None,
        awaits: Sequence[str] = (),
    ) -> None:
        """See the port."""
        extra: dict[str, Any] = {"awaits": list(awaits)} if awaits else {}
        extra |= {"until": until_ms} if until_ms is not None else {}
        await self._write("park", payloads, turn_id=turn_id, extra=extra)

    def live(self, msg: LiveMsg, *, turn_id: str | None = None) -> None:
        """See the port. Sent after at most 50 ms or 20 deltas, in order with the commits."""
        if self._end is None:
            self.live_buffer.add(msg, turn_id)
            self._core.live_flusher.note(self)

    # --- for the worker

    async def hand_over(self, payloads: Sequence[LinePayload] = (), *, turn_id: str | None = None) -> None:
        """Give the thread to whichever worker claims it next, its turn unfinished. LeaseLost when it is gone already."""
        await self._write("park", payloads, turn_id=turn_id, extra={"ready": True})

    async def set_container(self, container: str | None) -> None:
        """Record the container that serves the thread; None: none does."""
        await self._write("commit", (), extra={"container": container or ""})

    async def take_waiting(self) -> Sequence[WaitingSubmission]:
        """All that waits and was not received yet, without waiting for more."""
        while not self._end and await self._fetch():
            pass
        self._raise_if_ended()
        taken = list(self._inbox)
        self._inbox.clear()
        return taken

    async def release(self) -> bool:
        """Give the lease back if nothing is left to do. False: something is."""
        await self._released_when_idle()
        return not self.held

    @property
    def held(self) -> bool:
        """Whether the lease is this channel's, as far as it knows."""
        return self._end is None

    @property
    def next_ordinal(self) -> int:
        """Ordinal of the next record."""
        return self._next

    def wake(self) -> None:
        """There may be news."""
        self._wake.set()

    def renewed(self, asked_at: float) -> None:
        """The lease was renewed by a call that began at this monotonic time."""
        self._deadline = max(self._deadline, asked_at + self._core.lease_ttl_s)

    def mark_lost(self) -> None:
        """The lease belongs to somebody else."""
        self._finish(LeaseLost)

    # --- inside

    async def _write(
        self,
        script: ScriptName,
        payloads: Sequence[LinePayload],
        *,
        turn_id: str | None = None,
        submission_id: str | None = None,
        consumed: Sequence[str] = (),
        answers: Mapping[str, Sequence[LinePayload]] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """Write in a task of its own: a cancelled caller must not leave open whether its records were written."""
        work = self._write_in_order(script, payloads, turn_id, submission_id, consumed, answers or {}, extra or {})
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(_retrieve)
        return await asyncio.shield(task)

    async def _write_in_order(
        self,
        script: ScriptName,
        payloads: Sequence[LinePayload],
        turn_id: str | None,
        submission_id: str | None,
        consumed: Sequence[str],
        answers: Mapping[str, Sequence[LinePayload]],
        extra: Mapping[str, Any],
    ) -> str:
        async with self.lock:
            self._raise_if_ended()
            encoded = encode(
                payloads,
                first_ordinal=self._next,
                now_ms=self._now_ms,
                submission_id=submission_id,
                turn_id=turn_id,
                answers=answers,
            )
            consumed = [*answers, *consumed]
            batch = self.live_buffer.take()
            ends = script != "commit" or encoded.closes_thread
            closed = self.live_buffer.close(None if ends else encoded.touched_items)
            args: dict[str, Any] = {
                **self._fencing(),
                "events": encoded.event_flags,
                "live": batch.args(),
                "closed": closed,
                "consumed": [self._stream_ids[name] for name in consumed if name in self._stream_ids],
                "totals": encoded.totals,
                "seen": self._seen,
                **extra,
            }
            args |= {"turn": turn_id} if turn_id is not None else {}
            args |= {"cost": repr(encoded.cost_usd)} if encoded.cost_usd is not None else {}
            args |= {"close": True} if encoded.closes_thread else {}
            reply = await self._insist(script, args, [*encoded.lines, *batch.blobs()])
            status = decode(reply[0])
            if status == "STEER":
                self.live_buffer.put_back(batch)
            self._settle(status, reply, len(encoded.lines), consumed, turn_id)
            return status

    def _settle(self, status: str, reply: Reply, written: int, consumed: Sequence[str], turn_id: str | None) -> None:
        """Bring this side in line with what the script did."""
        match status:
            case "OK" | "MORE" | "IDLE" | "CLOSED" | "READY" | "PARKED":
                self._next += written
                for name in consumed:
                    self._stream_ids.pop(name, None)
            case "STEER":
                self._wake.set()
                return
            case "FENCED":
                self.mark_lost()
                raise LeaseLost(self.thread_id)
            case _:
                raise QueueMisuse(f"thread {self.thread_id}: {status} {reply[1:]} at ordinal {self._next}, turn {turn_id}")
        match status:
            case "IDLE" | "CLOSED":
                self._finish(LeaseReleased)
            case "READY" | "PARKED":
                self._finish(LeaseReleased)
            case "MORE":
                # Absent in a repeated answer; the next look at the inbox tells it then.
                self.active_turn_id = (decode(reply[1]) or None) if len(reply) > 1 else None
                self._inbox = deque(entry for entry in self._inbox if entry.submission.id != turn_id)
                self._wake.set()
            case _:
                if consumed:
                    self._wake.set()

    async def _fetch(self) -> bool:
        """Read new submissions; True when there were any."""
        args = {"what": "inbox", "thread": self.thread_id, "fence": str(self.fence), "seen": self._seen}
        reply = await self._insist("read", args, [])
        if decode(reply[0]) == "FENCED":
            if self._end is None:
                self.mark_lost()
            self._raise_if_ended()
        for stream_id, submission_id, text, turn_id in reply[1]:
            entry = WaitingSubmission(decode(stream_id), Submission.model_validate_json(text), decode(turn_id))
            self._stream_ids[decode(submission_id)] = entry.stream_id
            self._seen = entry.stream_id
            self._inbox.append(entry)
        self.active_turn_id = decode(reply[2]) or None
        return bool(reply[1])

    async def _released_when_idle(self) -> bool:
        """Give the lease back unless a turn is active or a submission waits; True: look again."""
        if self.active_turn_id is not None or self._kept:
            return False
        async with self.lock:
            if self._end is not None:
                return True
            reply = await self._insist("release", {**self._fencing(), "events": []}, [])
            status = decode(reply[0])
            if status == "IDLE":
                self._finish(LeaseReleased)
            elif status == "FENCED":
                self.mark_lost()
        return status in ("IDLE", "FENCED", "ACTIVE")

    async def _insist(self, script: ScriptName, args: Mapping[str, Any], blobs: Sequence[bytes]) -> Reply:
        """Run a script; while the server is away, try again until the lease is certainly gone."""
        while True:
            try:
                return await self._core.backend.run(script, args, blobs)
            except QueueUnavailable as error:
                if self._monotonic() >= self._deadline:
                    self.mark_lost()
                    raise LeaseLost(self.thread_id) from error
            await asyncio.sleep(RETRY_S)
            self._raise_if_ended()

    def _fencing(self) -> dict[str, Any]:
        return {"thread": self.thread_id, "fence": str(self.fence), "first": self._next}

    def _finish(self, kind: type[LeaseLost]) -> None:
        if self._end is None:
            self._end = kind
        self._wake.set()

    def _raise_if_ended(self) -> None:
        if self._end is not None:
            raise self._end(self.thread_id)


def _retrieve(task: "asyncio.Task[str]") -> None:
    """Mark a failure as seen: its caller may be gone."""
    if not task.cancelled():
        task.exception()
