"""Segments whatever crashes, and restoring whatever the window."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

from patchyard.adapters.store import Body, ObjectPage, ObjectSlice, StoredSegments, StoreUnavailable
from patchyard.protocol.budgets import BudgetRequest
from patchyard.protocol.events import (
    ExecApprovalRequest,
    ItemCompleted,
    ItemStarted,
    OpApplied,
    RequestResolved,
    ThreadSettingsApplied,
    TokenCount,
    TurnCompleted,
    TurnInterrupted,
    TurnParked,
    TurnRecovered,
)
from patchyard.protocol.ids import new_id
from patchyard.protocol.items import ItemStatus
from patchyard.protocol.model_items import FunctionCall, FunctionCallOutput, TokenUsage
from patchyard.protocol.ops import ApprovalDecision, TurnOverrides
from patchyard.protocol.policies import BudgetLimits
from patchyard.protocol.rollout_lines import Compacted, RolloutLine, SessionMetaLine, WorldState
from patchyard.rollout import (
    RestoreWindow,
    RolloutError,
    SegmentRecorder,
    StoredLine,
    build_trace,
    decode_line,
    encode_line,
    load_thread,
    read_back,
    read_lines,
    restore,
    thread_prefix,
)
from patchyard.testing.store import MemoryStore
from tests.rollout_lines import T0, USAGE, Thread, user

THREAD = new_id(T0)
PREFIX = thread_prefix("default", THREAD)


class Stage(MemoryStore):
    """A store that lets others run before and after every call, and breaks some: before or after they took effect."""

    def __init__(self, source: random.Random, trouble: float) -> None:
        super().__init__()
        self._source = source
        self._trouble = trouble

    async def _disturbed(self, work: Callable[[], Awaitable[Any]]) -> Any:
        await self._turn()
        fate = self._source.random() / self._trouble if self._trouble else 1.0
        if fate < 0.5:
            raise StoreUnavailable("the request was lost")
        answer = await work()
        await self._turn()
        if fate < 1.0:
            raise StoreUnavailable("the answer was lost")
        return answer

    async def _turn(self) -> None:
        for _ in range(self._source.randrange(3)):
            await asyncio.sleep(0)

    async def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        await self._disturbed(lambda: super(Stage, self).put(key, data, if_absent=if_absent))

    async def get(self, key: str) -> bytes:
        return await self._disturbed(lambda: super(Stage, self).get(key))

    async def get_range(self, key: str, start: int = 0, length: int | None = None, *, suffix: int | None = None) -> ObjectSlice:
        return await self._disturbed(lambda: super(Stage, self).get_range(key, start, length, suffix=suffix))

    async def list(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> ObjectPage:
        return await self._disturbed(lambda: super(Stage, self).list(prefix, after=after, limit=2))

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            await self._disturbed(lambda key=key: super(Stage, self).delete([key]))


LINES = [StoredLine(n, b'{"ordinal":%d,"pad":"%s"}' % (n, b"p" * (n % 5))) for n in range(60)]


class Queue:
    """Committed lines, trimmed only through what a recorder confirmed."""

    def __init__(self) -> None:
        self.committed = 0
        self.trimmed = -1

    def read(self) -> list[StoredLine]:
        return LINES[self.trimmed + 1 : self.committed]


async def _flusher(queue: Queue, store: Stage, source: random.Random, steps: int) -> None:
    recorder = SegmentRecorder(StoredSegments(store), "default", THREAD)
    for _ in range(steps):
        try:
            match source.randrange(8):
                case 0:
                    recorder = SegmentRecorder(StoredSegments(store), "default", THREAD)
                case 1 | 2:
                    await recorder.merge()
                case _:
                    queue.committed = min(queue.committed + source.randrange(4), len(LINES))
                    lines = queue.read()
                    await store._turn()
                    stored = await recorder.append(lines[: source.randrange(1, 9)])
                    if source.random() < 0.6:
                        queue.trimmed = max(queue.trimmed, stored)
        except StoreUnavailable:
            if source.random() < 0.5:
                recorder = SegmentRecorder(StoredSegments(store), "default", THREAD)


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    flushers=st.integers(1, 3),
    steps=st.integers(1, 14),
    trouble=st.sampled_from([0.0, 0.05, 0.2]),
)
def test_segments_reassemble_whatever_order_of_crashes_and_adoptions(
    seed: int, flushers: int, steps: int, trouble: float
) -> None:
    source = random.Random(seed)
    store, queue = Stage(source, trouble), Queue()

    async def run() -> None:
        await asyncio.gather(*(_flusher(queue, store, source, steps) for _ in range(flushers)))
        store._trouble = 0.0
        quiet = StoredSegments(store)
        found = [line async for line in read_lines(quiet, PREFIX)]
        assert found == LINES[: len(found)]
        assert len(found) > queue.trimmed
        assert [line async for line in read_back(quiet, PREFIX)] == found[::-1]
        last = SegmentRecorder(quiet, "default", THREAD)
        assert await last.append(queue.read()) == max(len(found), queue.committed) - 1
        await last.merge()
        assert [line async for line in read_lines(quiet, PREFIX)] == LINES[: max(len(found), queue.committed)]
        assert all("-" in key.removeprefix(PREFIX) for key in store.objects)

    asyncio.run(run())


MORE = BudgetLimits(tokens=2)


def _change(source: random.Random) -> TurnOverrides:
    name = source.choice(("model", "effort", "cwd"))
    return TurnOverrides.model_validate({name: f"m{source.randrange(3)}"})


def _random_thread(source: random.Random, size: int) -> list[RolloutLine]:
    """A thread as an agent could have written it, cut off anywhere."""
    thread = Thread(thread_id=THREAD)
    if source.random() < 0.2:
        thread.add(TurnInterrupted(usage=TokenUsage()), turn=new_id(T0))
    thread.add(thread.meta())
    total = TokenUsage()
    window = 0
    turn: str | None = None
    calls: list[str] = []
    while len(thread.lines) < size:
        if turn is None:
            if source.random() < 0.3:
                thread.add(ThreadSettingsApplied(overrides=_change(source)))
            turn = new_id(T0 + len(thread.lines))
            thread.add(thread.started(), turn=turn)
            if source.random() < 0.3:
                thread.add(ThreadSettingsApplied(overrides=_change(source)), turn=turn)
            thread.add(thread.context(turn, f"m{source.randrange(3)}"), user("go"), turn=turn)
        match source.randrange(12):
            case 0 | 1 | 2:
                usage = TokenUsage(input_tokens=source.randrange(100))
                total = TokenUsage(input_tokens=total.input_tokens + usage.input_tokens)
                count = TokenCount(last=usage, total=total, cost_usd=0.5 * len(thread.lines))
                thread.add(thread.request(usage=usage), count, turn=turn)
            case 3:
                call = f"call_{len(thread.lines)}"
                calls.append(call)
                item = thread.command(call, ItemStatus.IN_PROGRESS)
                thread.add(
                    FunctionCall(call_id=call, name="t", arguments="{}"), ItemStarted(item=item, started_at=1), turn=turn
                )
            case 4 if calls:
                call = calls.pop(source.randrange(len(calls)))
                item = thread.command(call, ItemStatus.COMPLETED)
                output = FunctionCallOutput(call_id=call, output="ok")
                thread.add(ItemCompleted(item=item, completed_at=2), output, turn=turn)
            case 5:
                window += 1
                history = (user(f"summary {window}"),)
                thread.add(Compacted(window_number=window, replacement_history=history, reason="manual"), turn=turn)
            case 6:
                state = {f"k{source.randrange(3)}": source.randrange(9)}
                thread.add(WorldState(full=source.random() < 0.5, state=state), turn=turn)
            case 7:
                thread.add(TurnParked(reason="approval"), TurnRecovered(segment=2, reason="unparked"), turn=turn)
            case 8:
                ask = ExecApprovalRequest(approval_id=f"a{len(thread.lines)}", item_id="i", command=("x",), cwd="/")
                thread.add(ask, turn=turn)
                if source.random() < 0.5:
                    answer = RequestResolved(request_id=ask.approval_id, decision=ApprovalDecision.ACCEPT)
                    thread.add(answer, turn=turn)
            case 10:
                spent = BudgetRequest(request_id=f"b{len(thread.lines)}", budget="tokens", used=1, limit=1, proposed=MORE)
                thread.add(spent, turn=turn)
                if source.random() < 0.7:
                    given = MORE if source.random() < 0.7 else None
                    decision = ApprovalDecision.DECLINE if given is None else ApprovalDecision.ACCEPT
                    thread.add(RequestResolved(request_id=spent.request_id, decision=decision, budgets=given), turn=turn)
            case 11:
                change = _change(source)
                later = ThreadSettingsApplied(overrides=change), OpApplied(op="turn_settings", overrides=change)
                thread.add(source.choice(later), turn=turn)
            case 9 if not calls:
                thread.add(TurnCompleted(usage=USAGE, model_requests=1, tool_calls=0, duration_ms=1), turn=turn)
                turn = None
            case _:
                pass
    return thread.lines[: source.randrange(1, len(thread.lines) + 1)]


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 90))
def test_restoring_from_the_end_is_the_same_as_a_straight_fold(seed: int, size: int) -> None:
    lines = _random_thread(random.Random(seed), size)
    window = RestoreWindow()
    for line in reversed(lines):
        if window.enough:
            break
        window.add(line)
    head = [line for line in lines if isinstance(line, SessionMetaLine) and not window.has_meta]
    assert restore([*head, *window.lines()]) == restore(lines)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 60))
def test_restoring_from_store_and_queue_is_the_same_as_a_straight_fold(seed: int, size: int) -> None:
    source = random.Random(seed)
    lines = _random_thread(source, size)
    stored = source.randrange(len(lines) + 1)
    tail = lines[source.randrange(stored + 1) :]

    async def run() -> None:
        segments = StoredSegments(MemoryStore())
        recorder = SegmentRecorder(segments, "default", THREAD)
        position = 0
        while position < stored:
            step = min(source.randrange(1, 9), stored - position)
            batch = [StoredLine(line.ordinal, encode_line(line)) for line in lines[position : position + step]]
            position = await recorder.append(batch) + 1
            if source.random() < 0.3:
                await recorder.merge()
        assert await load_thread(segments, "default", THREAD, tail) == restore(lines)

    asyncio.run(run())


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 60))
def test_every_beginning_of_a_thread_has_a_trace_and_survives_encoding(seed: int, size: int) -> None:
    lines = _random_thread(random.Random(seed), size)
    assert [decode_line(encode_line(line)) for line in lines] == lines
    tree = build_trace(lines)
    assert tree.root is not None
    assert tree.root.start_ms <= lines[0].timestamp


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200))
def test_no_bytes_crash_the_codec(data: bytes) -> None:
    try:
        decode_line(data)
    except RolloutError:
        return
    raise AssertionError("random bytes were taken for a line")
