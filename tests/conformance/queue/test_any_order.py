"""Whatever happens in whatever order: the promises of architecture §10, checked on random histories.

A small agent works on one thread; users submit, workers crash, hand over and park, zombies write. At the end everything is
drained, and the thread's records alone must show that each promise was kept.
"""

import asyncio
import itertools
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from patchyard.adapters.queue import Backend, Claim, QueueCore, QueueThreadChannel, ThreadClosedError, ThreadRegistration
from patchyard.adapters.queue._redis import RedisBackend
from patchyard.agent.ports import LeaseLost
from patchyard.protocol import events, ops
from patchyard.protocol.ids import new_id
from patchyard.protocol.items import UserMessageItem
from patchyard.protocol.ops import Submission
from patchyard.testing.queue import MemoryBackend
from tests.conformance.queue.kit import completed, interrupted, say, started

Action = Literal[
    "input", "steer", "stale_steer", "interrupt", "settings", "compact", "approve", "repeat",
    "claim", "work", "finish", "park", "hand_over", "crash", "zombie", "shutdown",
]  # fmt: skip
ORDINARY: list[Action] = [
    "input", "input", "steer", "stale_steer", "interrupt", "settings", "compact", "approve", "repeat",
    "claim", "claim", "work", "work", "work", "finish", "finish", "park", "hand_over", "crash", "zombie",
]  # fmt: skip
HISTORIES = st.lists(st.sampled_from(ORDINARY), max_size=40)


@dataclass
class World:
    """One thread, its users and its workers."""

    core: QueueCore
    thread: str = field(default_factory=new_id)
    channel: QueueThreadChannel | None = None
    claimed: Claim | None = None
    zombies: list[QueueThreadChannel] = field(default_factory=list)
    sent: list[tuple[Submission, ops.SubmissionReceipt]] = field(default_factory=list)
    steers: list[str] = field(default_factory=list)
    numbers: Any = field(default_factory=itertools.count)

    # --- users

    async def submit(self, op: ops.Op) -> None:
        number = next(self.numbers)
        submission = Submission(
            id=new_id(), tenant_id="default", thread_id=self.thread, op=op, submitted_at=number, idempotency_key=f"k{number}"
        )
        try:
            receipt = await self.core.submit(submission, registration=ThreadRegistration())
        except ThreadClosedError:
            return
        self.sent.append((submission, receipt))

    async def repeat(self) -> None:
        """A client that did not get its answer asks again, with a new submission id."""
        if self.sent:
            submission, first = self.sent[len(self.sent) // 2]
            again = await self.core.submit(submission.model_copy(update={"id": new_id()}), registration=ThreadRegistration())
            if first.admission.type != "not_submitted":
                assert again == first.model_copy(update={"duplicate": True})
            else:
                self.sent.append((submission, again))

    # --- the agent

    async def claim(self) -> None:
        if self.channel is None:
            claim = await self.core.claim("w")
            if claim is not None:
                begun = await self._has_begun(claim)
                assert not begun or (claim.segment > 1 and claim.reason != "new"), "a turn that has begun is recovered"
                self.claimed = claim
                self.channel = QueueThreadChannel(self.core, claim)
                self.steers = []

    async def _has_begun(self, claim: Claim) -> bool:
        lines = [json.loads(line.json) for line in await self.core.read_lines(self.thread, after=None, limit=10_000)]
        started_turns = {line["turn_id"] for line in lines if line["payload"]["type"] == "turn_started"}
        return claim.active_turn_id in started_turns

    async def work(self) -> None:
        """Take one submission and do what it says."""
        channel = self.channel
        if channel is None:
            return
        if not channel._inbox:
            await channel._fetch()
        if not channel._inbox:
            await self._leave_if_idle(channel)
            return
        submission = await channel.receive()
        match submission.op:
            case ops.Interrupt() | ops.Shutdown():
                await self._stop(channel, submission)
            case ops.TurnInput() if channel.active_turn_id == submission.id:
                await channel.commit([started()], turn_id=submission.id, consumed=[submission.id])
            case ops.TurnInput():
                item = UserMessageItem(id=submission.id, content=(), submission_id=submission.id)
                told = events.ItemCompleted(item=item, completed_at=1)
                await channel.commit([told], turn_id=channel.active_turn_id, consumed=[submission.id])
            case ops.Compact() if channel.active_turn_id == submission.id:
                await channel.commit([started()], turn_id=submission.id, consumed=[submission.id])
            case _:
                done = events.OpApplied(op=submission.op.type)
                await channel.commit([done], submission_id=submission.id, consumed=[submission.id])

    async def _leave_if_idle(self, channel: QueueThreadChannel) -> None:
        if channel.active_turn_id is None:
            await channel._released_when_idle()
            self._forget_if_ended()

    async def _stop(self, channel: QueueThreadChannel, submission: Submission) -> None:
        turn, closing = channel.active_turn_id, isinstance(submission.op, ops.Shutdown)
        ending = [events.ThreadClosed()] if closing else []
        if turn is None:
            await channel.commit([events.OpApplied(op="late"), *ending], consumed=[submission.id])
            self._forget_if_ended()
            return
        dropped: list[str] = []
        while not await channel.finish_turn([interrupted(*dropped), *ending], turn_id=turn, consumed=[submission.id, *dropped]):
            await channel._fetch()
            steers = [entry for entry in channel._inbox if isinstance(entry.submission.op, ops.TurnInput)]
            for entry in steers:
                channel._inbox.remove(entry)
                dropped.append(entry.submission.id)
        self._forget_if_ended()

    async def finish(self) -> None:
        channel = self.channel
        if channel is None or channel.active_turn_id is None:
            return
        if await channel.finish_turn([completed()], turn_id=channel.active_turn_id):
            channel.active_turn_id = None
            self._forget_if_ended()

    async def park(self) -> None:
        channel = self.channel
        if channel is not None and channel.active_turn_id is not None:
            await channel.park([events.TurnParked(reason="approval")], turn_id=channel.active_turn_id)
            self._forget_if_ended()

    async def hand_over(self) -> None:
        if self.channel is not None:
            await self.channel.hand_over()
            self._forget_if_ended()

    async def crash(self, expire: Any) -> None:
        """The worker is gone, its lease ends. Its ghost may still write."""
        if self.channel is not None:
            self.zombies.append(self.channel)
            self.channel = None
            await expire(self.thread)
            await self.core.backend.run("reap", {"ttl": 0, "limit": 100})

    async def zombie(self) -> None:
        for ghost in self.zombies[-2:]:
            with pytest.raises(LeaseLost):
                await ghost.commit([events.Warning_(message="written by a zombie")])

    def _forget_if_ended(self) -> None:
        if self.channel is not None and not self.channel.held:
            self.channel = None


async def play(world: World, history: list[Action], expire: Any) -> None:
    for action in history:
        state = await world.core.thread_state(world.thread)
        turn = state.active_turn_id if state else None
        match action:
            case "input":
                await world.submit(say("x"))
            case "steer" if turn:
                await world.submit(say("s", mode=ops.Steer(expected_turn_id=turn)))
            case "steer" | "stale_steer":
                await world.submit(say("s", mode=ops.Steer(expected_turn_id=new_id())))
            case "interrupt":
                await world.submit(ops.Interrupt())
            case "shutdown":
                await world.submit(ops.Shutdown())
            case "settings":
                await world.submit(ops.ThreadSettings(overrides=ops.TurnOverrides()))
            case "compact":
                await world.submit(ops.Compact())
            case "approve":
                await world.submit(ops.ExecApproval(approval_id="a", decision=ops.ApprovalDecision.ACCEPT))
            case "crash":
                await world.crash(expire)
            case _:
                await getattr(world, action)()
        await check_state(world)


async def check_state(world: World) -> None:
    """What must hold at every moment."""
    state = await world.core.thread_state(world.thread)
    if state is None:
        return
    assert (state.status == "running") == (state.worker is not None) == (world.channel is not None)
    if state.status in ("idle", "closed"):
        assert (state.waiting, state.active_turn_id) == (0, None)


async def drain(world: World) -> None:
    """Workers without trouble, until nothing is left to do."""
    for _ in range(400):
        if world.channel is None:
            await world.claim()
        if world.channel is None:
            state = await world.core.thread_state(world.thread)
            if state is None or state.status != "parked":
                return
            await world.submit(ops.Interrupt())
            continue
        await world.work()
        if world.channel is not None and not world.channel._inbox:
            await world.finish()
    raise AssertionError("never done")


async def check_records(world: World) -> None:
    """The promises, from the records alone."""
    lines = [json.loads(line.json) for line in await world.core.read_lines(world.thread, after=None, limit=10_000)]
    assert [line["ordinal"] for line in lines] == list(range(len(lines)))
    by_type: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        by_type.setdefault(line["payload"]["type"], []).append(line)
    assert "warning" not in by_type, "a fenced worker wrote"
    ends = Counter(
        line["turn_id"] for kind in ("turn_completed", "turn_interrupted", "turn_failed") for line in by_type.get(kind, [])
    )
    delivered = Counter(line["payload"]["item"]["submission_id"] for line in by_type.get("item_completed", []))
    dropped = Counter(i for line in by_type.get("turn_interrupted", []) for i in line["payload"]["dropped_submission_ids"])
    ids = Counter(receipt.submission_id for _, receipt in world.sent if not receipt.duplicate)
    assert set(ids.values()) <= {1}
    for submission, receipt in world.sent:
        match receipt.admission:
            case ops.Started(turn_id=turn):
                assert ends[turn] == 1, "one terminal event for each turn"
            case ops.Steered() if isinstance(submission.op, ops.TurnInput):
                told = delivered[receipt.submission_id] + dropped[receipt.submission_id]
                assert told == 1, "a steer is delivered or given back"
            case _:
                pass
    settings_ids = [r.submission_id for s, r in world.sent if isinstance(s.op, ops.ThreadSettings)]
    answered = Counter(line["submission_id"] for kind in ("op_applied", "op_rejected") for line in by_type.get(kind, []))
    assert all(answered[name] <= 1 for name in settings_ids)
    if "thread_closed" not in by_type:
        assert all(answered[name] == 1 for name in settings_ids)
    state = await world.core.thread_state(world.thread)
    assert state is None or (state.status in ("idle", "closed") and state.waiting == 0)


async def run(backend: Backend, history: list[Action], expire: Any) -> None:
    core = QueueCore("test:", backend=backend)
    await core.open()
    world = World(core)
    try:
        await play(world, history, expire)
        await drain(world)
        await check_records(world)
    finally:
        await core.close()


@settings(max_examples=200, deadline=None)
@example(["input", "claim", "interrupt"], True)
@given(HISTORIES, st.booleans())
def test_promises_hold_in_memory(history: list[Action], closes: bool) -> None:
    backend = MemoryBackend()

    async def expire(thread: str) -> None:
        backend._leases[thread] = 0

    asyncio.run(run(backend, [*history, "shutdown"] if closes else history, expire))


@pytest.mark.redis
@pytest.mark.parametrize("flavour", ["redis", "valkey"])
def test_promises_hold_on_a_server(flavour: str, server_urls: dict[str, str]) -> None:
    url = server_urls[flavour]

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(HISTORIES, st.booleans())
    def histories(history: list[Action], closes: bool) -> None:
        async def main() -> None:
            backend = RedisBackend(url)

            async def expire(thread: str) -> None:
                await backend._redis.zadd("py:{0}:leases", {thread: 1})

            await run(backend, [*history, "shutdown"] if closes else history, expire)

        with redis.Redis.from_url(url) as client:
            client.flushall()
        asyncio.run(main())

    histories()
