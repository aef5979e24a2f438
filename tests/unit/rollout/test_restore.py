"""What a worker gets when it takes a thread over."""

import asyncio

import pytest

from patchyard.adapters.store import StoredSegments
from patchyard.protocol.budgets import BudgetRequest
from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.events import (
    ExecApprovalRequest,
    ItemCompleted,
    ItemStarted,
    RequestResolved,
    ThreadClosed,
    ThreadSettingsApplied,
    TokenCount,
    TurnCompleted,
    TurnParked,
    TurnRecovered,
)
from patchyard.protocol.ids import new_id
from patchyard.protocol.items import ItemStatus
from patchyard.protocol.model_items import CustomToolCall, FunctionCall, FunctionCallOutput, TokenUsage
from patchyard.protocol.ops import TurnOverrides
from patchyard.protocol.policies import BudgetLimits
from patchyard.protocol.rollout_lines import Compacted, WorldState
from patchyard.rollout import OrdinalGap, SegmentRecorder, StoredLine, encode_line, load_thread, restore
from patchyard.testing.store import MemoryStore
from tests.rollout_lines import T0, USAGE, Thread, user, verified_task

TURN = new_id(T0 + 5)


def test_nothing_restores_to_nothing() -> None:
    thread = restore([])
    assert (thread.meta, thread.history, thread.turn, thread.next_ordinal) == (None, (), None, 0)


def test_a_finished_thread() -> None:
    lines = verified_task().lines
    thread = restore(lines)
    assert thread.turn is None
    assert thread.open_calls == ()
    assert [item.type for item in thread.history] == ["message", "function_call", "function_call_output"]
    assert (thread.usage, thread.last_usage, thread.next_ordinal, thread.closed) == (USAGE, USAGE, len(lines), False)
    assert thread.turn_context is not None
    assert thread.turn_context.model == "gpt-5.5"


def test_a_turn_that_was_cut_off_goes_on_where_it_was() -> None:
    thread = Thread()
    thread.add(thread.meta())
    thread.add(thread.started(kind="review"), thread.context(TURN), user("go"), turn=TURN)
    failed = thread.request(1, error=ErrorInfo.of(ErrorCode.MODEL_OVERLOADED, "busy"), usage=None, cost_usd=None)
    thread.add(failed, thread.request(2), turn=TURN)
    calls = [
        FunctionCall(call_id="a", name="exec_command", arguments="{}"),
        CustomToolCall(call_id="b", name="apply_patch", input="x"),
        FunctionCall(call_id="c", name="exec_command", arguments="{}"),
    ]
    thread.add(*calls, turn=TURN)
    running = thread.command("c", ItemStatus.IN_PROGRESS)
    thread.add(ItemStarted(item=thread.command("a", ItemStatus.IN_PROGRESS), started_at=1), turn=TURN)
    thread.add(ItemStarted(item=running, started_at=1), turn=TURN)
    thread.add(ItemCompleted(item=thread.command("a", ItemStatus.COMPLETED), completed_at=2), turn=TURN)
    thread.add(FunctionCallOutput(call_id="a", output="ok"), turn=TURN)
    ask = ExecApprovalRequest(approval_id="q", item_id="c", command=("rm",), cwd="/")
    thread.add(ask, ExecApprovalRequest(approval_id="p", item_id="c", command=("ls",), cwd="/"), turn=TURN)
    thread.add(RequestResolved(request_id="p", decision="void"), turn=TURN)

    restored = restore(thread.lines)
    assert restored.open_calls == (calls[1], calls[2])
    turn = restored.turn
    assert turn is not None
    assert (turn.turn_id, turn.kind, turn.segment) == (TURN, "review", 0)
    assert (turn.submitted_at, turn.started_at) == (T0 - 490, T0 + 10)
    assert (turn.model_requests, turn.failed_requests, turn.tool_calls) == (1, 1, 3)
    assert (turn.usage, turn.cost_usd) == (USAGE, 0.5)
    assert (turn.open_items, turn.open_questions, turn.parked) == ((running,), (ask,), None)
    assert turn.trace is not None

    parked = TurnParked(reason="approval", until=T0 + 99)
    thread.add(parked, turn=TURN)
    assert restore(thread.lines).turn.parked == parked  # type: ignore[union-attr]
    thread.add(TurnRecovered(segment=2, reason="unparked"), turn=TURN)
    turn = restore(thread.lines).turn
    assert turn is not None
    assert (turn.parked, turn.segment, turn.started_at) == (None, 2, T0 + 10)


def test_history_begins_at_the_newest_compaction_and_the_turn_goes_on_through_it() -> None:
    thread = Thread()
    thread.add(thread.meta(), thread.started(), thread.context(TURN), user("old"), turn=TURN)
    thread.add(thread.request(1), WorldState(full=True, state={"a": 1}), turn=TURN)
    for window in (1, 2):
        compacted = Compacted(window_number=window, replacement_history=(user(f"sum {window}"),), reason="context_limit")
        thread.add(compacted, turn=TURN)
    assert restore(thread.lines).world_state is None
    thread.add(WorldState(full=False, state={"b": 2}), WorldState(full=False, state={"b": None}), turn=TURN)
    thread.add(user("new"), thread.request(2), turn=TURN)
    restored = restore(thread.lines)
    assert restored.history == (user("sum 2"), user("new"))
    assert (restored.window_number, restored.world_state) == (2, {"b": None})
    assert restored.turn is not None
    assert restored.turn.model_requests == 2


def test_settings_for_later_turns_count_from_the_last_turns_settings() -> None:
    thread = Thread()
    thread.add(thread.meta())
    thread.add(ThreadSettingsApplied(overrides=TurnOverrides(model="early")))
    thread.add(thread.started(), thread.context(TURN), turn=TURN)
    thread.add(TurnCompleted(usage=USAGE, model_requests=0, tool_calls=0, duration_ms=1), turn=TURN)
    assert restore(thread.lines).overrides == TurnOverrides()
    thread.add(ThreadSettingsApplied(overrides=TurnOverrides(model="m1", effort="low")))
    thread.add(ThreadSettingsApplied(overrides=TurnOverrides(model="m2")), ThreadClosed())
    restored = restore(thread.lines)
    assert restored.overrides == TurnOverrides(model="m2", effort="low")
    assert restored.closed


def test_missing_lines_are_told() -> None:
    lines = verified_task().lines
    for broken in (lines[:4] + lines[5:], [lines[1], *lines[3:]], [lines[0], *lines[2:5], *lines[6:]]):
        with pytest.raises(OrdinalGap):
            restore(broken)


def _long_thread(turns: int) -> Thread:
    thread = Thread()
    thread.add(thread.meta())
    for number in range(turns):
        turn = new_id(T0 + number)
        thread.add(thread.started(), thread.context(turn), user(f"{number} " + "x" * 200), turn=turn)
        thread.add(thread.request(), TokenCount(last=USAGE, total=TokenUsage(input_tokens=number)), turn=turn)
        history = (user(f"summary {number}"),)
        thread.add(Compacted(window_number=number + 1, replacement_history=history, reason="manual"), turn=turn)
        thread.add(TurnCompleted(usage=USAGE, model_requests=1, tool_calls=0, duration_ms=1), turn=turn)
    return thread


def test_recovery_reads_the_end_of_a_long_thread_and_not_the_whole() -> None:
    thread = _long_thread(400)
    memory = MemoryStore()
    segments = StoredSegments(memory)

    async def run() -> None:
        recorder = SegmentRecorder(segments, "default", thread.thread_id)
        for start in range(0, 2800, 700):
            await recorder.append([StoredLine(n.ordinal, encode_line(n)) for n in thread.lines[: start + 700]][start:])
            await recorder.merge()
        stored = await recorder.append([StoredLine(n.ordinal, encode_line(n)) for n in thread.lines[2800:]])
        assert stored == thread.lines[-1].ordinal
        memory.calls.clear()
        restored = await load_thread(segments, "default", thread.thread_id, next_ordinal=len(thread.lines))
        assert restored == restore(thread.lines)
        reads = [call.split()[0] for call in memory.calls]
        assert reads.count("get") <= 2
        assert reads.count("get_range") <= 2

    asyncio.run(run())


def test_a_hole_between_store_and_queue_is_told() -> None:
    thread = _long_thread(3)
    segments = StoredSegments(MemoryStore())

    async def run() -> None:
        recorder = SegmentRecorder(segments, "default", thread.thread_id)
        await recorder.append([StoredLine(n.ordinal, encode_line(n)) for n in thread.lines[:5]])
        with pytest.raises(OrdinalGap):
            await load_thread(segments, "default", thread.thread_id, thread.lines[-2:])

    asyncio.run(run())


def test_a_store_that_ends_too_early_is_told() -> None:
    thread = _long_thread(3)
    segments = StoredSegments(MemoryStore())
    count = len(thread.lines)

    async def run() -> None:
        recorder = SegmentRecorder(segments, "default", thread.thread_id)
        await recorder.append([StoredLine(n.ordinal, encode_line(n)) for n in thread.lines[:-1]])
        for tail in ([], thread.lines[5:-1]):
            with pytest.raises(OrdinalGap):
                await load_thread(segments, "default", thread.thread_id, tail, next_ordinal=count)
        whole = await load_thread(segments, "default", thread.thread_id, thread.lines[-1:], next_ordinal=count)
        assert whole == restore(thread.lines)

    asyncio.run(run())


def test_time_without_a_worker_is_not_counted() -> None:
    thread = Thread()
    thread.add(thread.meta())

    def after(ms: int, *payloads: object) -> None:
        thread.skipped_ms += ms
        thread.add(*payloads, turn=TURN)

    after(0, thread.started(), user("go"))
    began = thread.lines[-2].timestamp
    after(5_000, thread.request())
    after(0, TurnParked(reason="approval", until=None))
    worked = thread.lines[-1].timestamp - began
    night = 8 * 3_600_000
    after(night, RequestResolved(request_id="q", decision="void"))
    turn = restore(thread.lines).turn
    assert turn is not None
    assert turn.active_ms == worked, "what the queue writes while the turn is parked is nobody's work"
    after(0, TurnRecovered(segment=1, reason="unparked"))
    resumed = thread.lines[-1].timestamp
    after(2_000, thread.request(2))
    second = thread.lines[-1].timestamp - resumed
    after(60_000, TurnRecovered(segment=2, reason="worker_lost"))
    turn = restore(thread.lines).turn
    assert turn is not None
    assert turn.active_ms == worked + second
    assert worked < 6_000 < night


def test_limits_that_people_raised_are_known_and_waiting_for_them_is_not_counted() -> None:
    thread = Thread()
    thread.add(thread.meta())

    def after(ms: int, *payloads: object) -> None:
        thread.skipped_ms += ms
        thread.add(*payloads, turn=TURN)

    after(0, thread.started(), user("go"))
    began = thread.lines[-2].timestamp
    asked = BudgetRequest(request_id="b1", budget="tokens", used=9, limit=9, proposed=BudgetLimits(tokens=18))
    after(3_000, asked)
    worked = thread.lines[-1].timestamp - began
    after(60_000, TurnParked(reason="budget", until=None))
    after(8 * 3_600_000, TurnRecovered(segment=1, reason="unparked"))
    turn = restore(thread.lines).turn
    assert turn is not None
    assert (turn.open_questions, turn.active_ms) == ((asked,), worked)
    after(5_000, RequestResolved(request_id="b1", decision="accept", budgets=BudgetLimits(tokens=18, model_requests=400)))
    answered = thread.lines[-1].timestamp
    after(2_000, thread.request(1))
    second = thread.lines[-1].timestamp - answered
    again = BudgetRequest(request_id="b2", budget="tokens", used=19, limit=18, proposed=BudgetLimits(tokens=28))
    after(0, again, RequestResolved(request_id="b2", decision="accept", budgets=BudgetLimits(tokens=50)))
    turn = restore(thread.lines).turn
    assert turn is not None
    assert turn.limits == BudgetLimits(tokens=50, model_requests=400)
    assert worked + second <= turn.active_ms < worked + second + 1_000
    assert not turn.budget_declined


@pytest.mark.parametrize("decision", ["decline", "expired"])
def test_a_no_to_more_budget_is_known(decision: str) -> None:
    thread = Thread()
    asked = BudgetRequest(request_id="b", budget="tokens", used=9, limit=9, proposed=BudgetLimits(tokens=18))
    thread.add(thread.meta(), thread.started(), asked, turn=TURN)
    thread.add(RequestResolved.model_validate({"request_id": "b", "decision": decision}), turn=TURN)
    turn = restore(thread.lines).turn
    assert turn is not None
    assert (turn.budget_declined, turn.limits) == (True, BudgetLimits())


def test_whether_the_input_of_a_turn_is_recorded() -> None:
    thread = Thread()
    thread.add(thread.meta())
    thread.add(thread.started(), turn=TURN)
    assert not restore(thread.lines).turn.input_recorded  # type: ignore[union-attr]
    thread.add(thread.context(TURN), user("go"), turn=TURN)
    assert restore(thread.lines).turn.input_recorded  # type: ignore[union-attr]
    assert not restore(thread.lines).turn.compacted  # type: ignore[union-attr]


def test_a_new_window_has_no_usage_until_a_response_is_counted_in_it() -> None:
    thread = Thread()
    thread.add(thread.meta(), thread.started(), thread.context(TURN), user("old"), turn=TURN)
    thread.add(thread.request(1), turn=TURN)
    assert (restore(thread.lines).last_usage, restore(thread.lines).counted_items) == (USAGE, 1)
    thread.add(Compacted(window_number=1, replacement_history=(user("s"),), reason="manual"), turn=TURN)
    restored = restore(thread.lines)
    assert (restored.last_usage, restored.counted_items) == (None, 0)
    assert restored.turn is not None
    assert restored.turn.compacted
    thread.add(user("more"), thread.request(2), user("not counted"), turn=TURN)
    assert restore(thread.lines).counted_items == 2
