import asyncio

import pytest

from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.model_items import CompactionItem
from patchyard.protocol.model_profiles import ModelProfile
from patchyard.protocol.ops import Compact, Interrupt, ThreadSettings, TurnOverrides
from patchyard.protocol.policies import Budgets
from patchyard.rollout import restore
from patchyard.testing.builders import message, response, says, shell, spec, turn_input, usage
from patchyard.testing.clock import settle
from patchyard.testing.harness import AgentHarness
from patchyard.testing.scripted_model import Fail, Hold
from patchyard.testing.scripted_sandbox import Command
from tests.unit.agent.kit import run, texts

WINDOW = 10_000
FULL = usage(8_000, 100)
"""Over the limit of 8,000 tokens."""
OVERFLOW = ErrorCode.CONTEXT_WINDOW_EXCEEDED


def harness(steps, **fields):
    return AgentHarness(steps, **{"model_context_window": WINDOW, **fields})


def full_step(call_id="c1", **fields):
    return response(shell("ls", call_id), tokens=FULL, **fields)


def roles(request):
    return [getattr(item, "role", item.type) for item in request.input]


def compaction_items(h):
    return [e.item for e in h.of_type("item_completed") if e.item.type == "context_compaction"]


def compacted_lines(h):
    return [line.payload for line in h.channel.lines if line.type == "compacted"]


# --- local, inside a turn


def test_a_full_window_is_summarised_inside_the_turn():
    h = harness([full_step(), says("Done: a. Next: b."), says("ok")], commands=[Command("ls", b"a.py")])
    run(h)
    asked, going_on = h.model.requests[1:]
    assert (asked.kind, asked.tools, asked.parallel_tool_calls, asked.window_number) == ("compaction", (), False, 0)
    assert roles(asked) == ["developer", "user", "user", "function_call", "function_call_output", "user"]
    assert "Write that text" in asked.input[-1].content[0].text
    assert (going_on.kind, going_on.window_number) == ("turn", 1)
    assert roles(going_on) == ["developer", "user", "user", "user"]
    _, environment, prompt, summary = texts(going_on.input)
    assert environment.startswith("<environment_context>")
    assert prompt == "Fix the bug."
    assert summary.startswith("<conversation_summary>")
    assert "Done: a. Next: b." in summary


def test_what_is_recorded_of_a_compaction():
    h = harness([full_step(), says("sum"), says("ok", tokens=usage(500, 5))], commands=[Command("ls")])
    run(h)
    (line,) = compacted_lines(h)
    assert (line.window_number, line.reason, line.method, line.summary) == (1, "context_limit", "local", "sum")
    (item,) = compaction_items(h)
    assert (item.status, item.window_number, item.trigger, item.method) == ("completed", 1, "auto", "local")
    assert item.tokens_before > 8_000 > item.tokens_after > 0
    kinds = [type(line.payload).__name__ for line in h.channel.lines]
    at = kinds.index("Compacted")
    assert kinds[at + 1] == "WorldState"
    end = h.end()
    assert (end.model_requests, end.usage.total_tokens) == (3, 8_100 + 15 + 505)
    assert [c.last.total_tokens for c in h.of_type("token_count")] == [8_100, 15, 505]
    restored = h.channel.restored()
    assert list(restored.history)[:4] == list(line.replacement_history)
    assert (restored.window_number, restored.last_usage.total_tokens, restored.counted_items) == (1, 505, 5)


def test_below_the_limit_and_without_a_next_step_nothing_happens():
    h = harness([response(shell("ls", "c1"), tokens=usage(7_000, 10)), says("ok", tokens=FULL)], commands=[Command("ls")])
    run(h)
    assert compacted_lines(h) == []


def test_the_share_is_a_setting():
    h = harness([full_step(), says("ok")], commands=[Command("ls")], context_budget=0.95)
    run(h)
    assert compacted_lines(h) == []


def test_steers_that_came_before_and_during_it_follow_the_summary_in_full_and_in_order():
    async def main():
        first, second = (Hold(asyncio.Event(), asyncio.Event()) for _ in range(2))
        h = harness(
            [[*full_step()[:-2], first, *full_step()[-2:]], [second, *says("sum")], says("ok")], commands=[Command("ls")]
        )
        h.submit()
        task = h.start()
        await first.reached.wait()
        h.submit(turn_input("one"))
        await settle()
        first.until.set()
        await second.reached.wait()
        h.submit(turn_input("two"))
        await settle()
        second.until.set()
        await task
        h.assert_done()
        assert texts(h.model.requests[2].input)[-3:][1:] == ["one", "two"]
        assert "one" not in texts(h.model.requests[1].input)

    asyncio.run(main())


def test_the_newest_user_messages_are_kept_and_earlier_summaries_are_not():
    h = harness(
        [full_step("c1"), says("first summary"), full_step("c2"), says("second summary"), says("ok")],
        commands=[Command("ls")] * 2,
    )
    run(h, turn_input("Fix it."))
    last = texts(h.model.requests[-1].input)
    assert last.count("Fix it.") == 1
    assert not any("first summary" in text for text in last)
    assert "second summary" in last[-1]
    assert h.model.requests[-1].window_number == 2
    assert any("compacted 2 times" in e.message for e in h.of_type("warning"))


def test_a_single_compaction_warns_nobody():
    h = harness([full_step(), says("sum"), says("ok")], commands=[Command("ls")])
    run(h)
    assert h.of_type("warning") == []


def test_a_window_that_is_full_from_the_start_is_not_compacted_at_each_step():
    """Instructions that fill the window: one compaction, then it has to grow before the next."""
    steps = [full_step("c1"), says("sum"), full_step("c2"), says("ok")]
    h = harness(
        steps,
        commands=[Command("ls")] * 2,
        source={"instructions": [("AGENTS.md", "word " * 6_200)]},
    )
    run(h)
    assert len(compacted_lines(h)) == 1


# --- before a turn, and alone


def test_a_full_window_is_compacted_before_the_turn_and_the_context_is_told_anew():
    async def main():
        h = harness([says("one", tokens=FULL), says("sum"), says("two")])
        h.submit(turn_input("first"))
        await h.run()
        h.session = h.new_session(h.channel.restored())
        h.submit(turn_input("second"))
        await h.run()
        h.assert_done()
        assert roles(h.model.requests[1]) == ["developer", "user", "user", "assistant", "user"]
        assert roles(h.model.requests[2]) == ["user", "user", "developer", "user", "user"]
        said = texts(h.model.requests[2].input)
        assert (said[0], said[-1]) == ("first", "second")
        assert said[1].startswith("<conversation_summary>")
        starts = [e.kind for e in h.of_type("turn_started")]
        assert starts == ["regular", "regular"]

    asyncio.run(main())


def test_input_that_would_overfill_the_window_counts():
    async def main():
        h = harness([says("one", tokens=usage(5_000, 10)), says("sum"), says("two")])
        h.submit(turn_input("first"))
        await h.run()
        h.session = h.new_session(h.channel.restored())
        h.submit(turn_input("x" * 14_000))
        await h.run()
        h.assert_done()
        assert len(compacted_lines(h)) == 1

    asyncio.run(main())


def test_compact_on_an_idle_thread_is_a_turn_of_its_own():
    async def main():
        h = AgentHarness([says("one"), says("sum"), says("two")])
        h.submit(turn_input("first"))
        await h.run()
        h.session = h.new_session(h.channel.restored())
        op = h.submit(Compact())
        await h.run()
        started = h.of_type("turn_started")[-1]
        assert started.kind == "compact"
        assert h.end().type == "turn_completed"
        assert h.channel.waiting == []
        assert len(h.gate.ended) == 1, "nothing is delivered by it"
        (item,) = compaction_items(h)
        assert (item.trigger, item.status) == ("manual", "completed")
        assert [line.turn_id for line in h.channel.lines if line.type == "compacted"] == [op.id]
        h.session = h.new_session(h.channel.restored())
        h.submit(turn_input("second"))
        await h.run()
        h.assert_done()
        assert texts(h.model.requests[-1].input)[0] == "first"

    asyncio.run(main())


def test_compact_without_anything_to_compact_says_so():
    h = AgentHarness()
    run(h, Compact())
    assert h.end().type == "turn_completed"
    assert "nothing to compact" in h.of_type("warning")[0].message


def test_a_compact_turn_can_not_be_steered():
    async def main():
        pause = Hold(asyncio.Event(), asyncio.Event())
        h = AgentHarness([says("one"), [pause, *says("sum")]])
        h.submit(turn_input("first"))
        await h.run()
        h.session = h.new_session(h.channel.restored())
        h.submit(Compact())
        task = h.start()
        await pause.reached.wait()
        steer = h.submit(turn_input("more"))
        await settle()
        pause.until.set()
        await task
        assert h.channel.answers(steer) == ["op_rejected"]
        assert h.of_type("op_rejected")[0].reason == "active_turn_not_steerable"

    asyncio.run(main())


def test_compact_during_a_turn_waits_for_the_step_and_is_answered():
    async def main():
        pause = Hold(asyncio.Event(), asyncio.Event())
        h = AgentHarness([[pause, *response(shell("ls", "c1"))], says("sum"), says("ok")], commands=[Command("ls")])
        h.submit()
        task = h.start()
        await pause.reached.wait()
        op = h.submit(Compact())
        await settle()
        assert len(h.model.requests) == 1
        pause.until.set()
        await task
        h.assert_done()
        assert [r.kind for r in h.model.requests] == ["turn", "compaction", "turn"]
        assert h.channel.answers(op) == ["op_applied"]
        assert compacted_lines(h)[0].reason == "manual"
        assert len(h.of_type("turn_started")) == 1

    asyncio.run(main())


def test_compact_during_the_last_step_is_done_after_the_turn():
    async def main():
        pause = Hold(asyncio.Event(), asyncio.Event())
        h = AgentHarness([[pause, *says("ok")], says("sum")])
        h.submit()
        task = h.start()
        await pause.reached.wait()
        h.submit(Compact())
        await settle()
        pause.until.set()
        await task
        h.assert_done()
        assert [e.kind for e in h.of_type("turn_started")] == ["regular", "compact"]
        assert len(h.of_type("turn_completed")) == 2

    asyncio.run(main())


# --- the other two ways


def test_remote_keeps_the_users_messages_and_the_opaque_item():
    opaque = CompactionItem(id="cmp_1", encrypted_content="xyz")
    h = harness([full_step(), response(opaque), says("ok")], commands=[Command("ls")], compaction="remote")
    run(h)
    asked, going_on = h.model.requests[1:]
    assert (asked.kind, asked.input[-1].type) == ("compaction", "compaction_trigger")
    assert asked.tools == h.model.requests[0].tools
    assert roles(going_on) == ["developer", "user", "user", "compaction"]
    assert going_on.input[-1] == opaque
    assert (compacted_lines(h)[0].method, compacted_lines(h)[0].summary) == ("remote", None)


@pytest.mark.parametrize(
    "bad",
    [
        response(message("no item")),
        response(CompactionItem(encrypted_content="a"), CompactionItem(encrypted_content="b")),
        [Fail(ErrorCode.MODEL_BAD_REQUEST, "unknown item")],
    ],
    ids=["none", "two", "refused"],
)
def test_when_the_provider_can_not_the_model_summarises(bad):
    h = harness([full_step(), bad, says("sum"), says("ok")], commands=[Command("ls")], compaction="remote")
    run(h)
    assert compaction_items(h)[0].method == "local"
    assert "could not compact" in h.of_type("warning")[0].message
    assert h.end().type == "turn_completed"


def test_token_budget_asks_no_model_and_hands_the_plan_on():
    from patchyard.testing.builders import call

    plan = call(
        "update_plan", "p1", plan=[{"step": "find it", "status": "completed"}, {"step": "fix", "status": "in_progress"}]
    )
    steps = [response(plan, tokens=usage(100, 10)), full_step(), full_step("c2"), says("ok")]
    h = harness(steps, commands=[Command("ls")] * 2, compaction="token_budget")
    run(h)
    assert [r.kind for r in h.model.requests] == ["turn"] * 4
    assert [r.window_number for r in h.model.requests] == [0, 0, 1, 2]
    for request in h.model.requests[2:]:
        (note,) = [text for text in texts(request.input) if text.startswith("<new_context_window>")]
        assert "- [in_progress] fix" in note


def test_token_budget_reminds_at_each_quarter_once():
    steps = [
        response(shell("ls", f"c{i}"), tokens=usage(used, 0)) for i, used in enumerate((2_400, 2_600, 5_100, 5_200, 7_600))
    ]
    h = harness([*steps, says("ok")], commands=[Command("ls")] * 5, compaction="token_budget", context_budget=0.95)
    run(h)
    told = [
        text.split(" %")[0].split("\n")[1] for text in texts(h.model.requests[-1].input) if text.startswith("<context_window>")
    ]
    assert told == ["25", "50", "75"]


# --- downshift


def test_a_smaller_model_is_given_a_summary_by_the_larger_one():
    async def main():
        models = {"big": ModelProfile(context_window=100_000), "small": ModelProfile(context_window=WINDOW)}
        h = AgentHarness(
            [says("one", tokens=usage(20_000, 10)), says("sum"), says("two")], models=models, spec=spec(model="big")
        )
        h.submit()
        await h.run()
        h.session = h.new_session(h.channel.restored())
        h.submit(ThreadSettings(overrides=TurnOverrides(model="small")))
        h.submit(turn_input("go on"))
        await h.run()
        h.assert_done()
        assert [r.model for r in h.model.requests] == ["big", "big", "small"]
        assert compacted_lines(h)[0].reason == "model_downshift"
        assert h.of_type("token_count")[-1].model_context_window == WINDOW

    asyncio.run(main())


# --- what goes wrong


def test_a_request_that_does_not_fit_is_sent_again_after_a_compaction():
    h = AgentHarness([response(shell("ls", "c1")), [Fail(OVERFLOW)], says("sum"), says("ok")], commands=[Command("ls")])
    run(h)
    assert [r.kind for r in h.model.requests] == ["turn", "turn", "compaction", "turn"]
    assert h.end().type == "turn_completed"


def test_a_request_that_does_not_fit_either_way_fails_in_plain_words():
    h = AgentHarness([response(shell("ls", "c1")), [Fail(OVERFLOW)], says("sum"), [Fail(OVERFLOW)]], commands=[Command("ls")])
    run(h)
    assert h.end().error.code is OVERFLOW
    assert "no longer fits" in h.end().error.message


def test_what_does_not_fit_into_the_compaction_is_left_out_oldest_first_with_pairs_kept():
    calls = [response(shell("ls", f"c{i}")) for i in range(6)]
    h = AgentHarness(
        [*calls, [Fail(OVERFLOW)], [Fail(OVERFLOW)], [Fail(OVERFLOW)], says("sum"), says("ok")],
        commands=[Command("ls", b"x" * 3_000)] * 6,
    )
    run(h)
    asked = [r.input for r in h.model.requests if r.kind == "compaction"]
    assert len(asked[0]) > len(asked[1]) > len(asked[2])
    for shorter in asked[1:]:
        assert list(shorter) == list(asked[0])[-len(shorter) :]
    assert h.end().type == "turn_completed"
    assert h.of_type("stream_error") == []


def test_when_nothing_is_left_to_leave_out_the_turn_fails_and_the_history_stays():
    h = AgentHarness([response(shell("ls", "c1")), [Fail(OVERFLOW)], *[[Fail(OVERFLOW)]] * 5], commands=[Command("ls")])

    async def main():
        h.submit()
        await h.run()

    asyncio.run(main())
    assert h.end().error.code is OVERFLOW
    assert compaction_items(h)[0].status == "failed"
    assert compacted_lines(h) == []


def test_a_broken_compaction_stream_is_tried_again():
    h = harness([full_step(), [Fail(ErrorCode.MODEL_STREAM_FAILED)], says("sum"), says("ok")], commands=[Command("ls")])
    run(h)
    assert [r.attempt for r in h.model.requests if r.kind == "compaction"] == [1, 2]
    assert len(h.of_type("stream_error")) == 1


def test_an_empty_summary_is_none():
    h = harness([full_step(), response()], commands=[Command("ls")])
    run(h)
    assert h.end().type == "turn_failed"
    assert compacted_lines(h) == []


def test_budgets_count_it():
    steps = [full_step(), says("sum"), response(shell("ls", "c2"))]
    h = harness(steps, commands=[Command("ls")] * 2, spec=spec(budgets=Budgets(model_requests=3, when_spent="end")))
    run(h)
    assert h.end().error.code is ErrorCode.BUDGET_EXCEEDED
    assert h.end().model_requests == 3


def test_the_last_request_is_for_the_answer():
    h = harness([full_step(), says("ok")], commands=[Command("ls")], spec=spec(budgets=Budgets(model_requests=2)))
    run(h)
    assert [r.kind for r in h.model.requests] == ["turn", "turn"]
    assert h.end().type == "turn_completed"


class Hooks:
    def __init__(self, refusal=None):
        self.refusal, self.seen = refusal, []

    async def before(self, trigger):
        self.seen.append(trigger)
        return self.refusal

    async def after(self, trigger):
        self.seen.append(f"after {trigger}")


def test_hooks_run_around_it():
    h = harness([full_step(), says("sum"), says("ok")], commands=[Command("ls")])
    hooks = h.session._thread.compaction_hooks = Hooks()
    run(h)
    assert hooks.seen == ["auto", "after auto"]


def test_a_refusal_ends_the_turn_as_aborted_and_leaves_the_history():
    h = harness([full_step()], commands=[Command("ls")])
    h.session._thread.compaction_hooks = Hooks("not now")
    run(h)
    assert h.end().type == "turn_interrupted"
    assert "not now" in h.of_type("warning")[0].message
    assert compacted_lines(h) == compaction_items(h) == []
    assert [i.type for i in h.channel.restored().history][-1] == "function_call_output"


def test_a_refusal_of_a_compaction_that_a_person_asked_for_is_its_answer():
    async def main():
        pause = Hold(asyncio.Event(), asyncio.Event())
        h = AgentHarness([[pause, *response(shell("ls", "c1"))], says("ok")], commands=[Command("ls")])
        h.session._thread.compaction_hooks = Hooks("not now")
        h.submit()
        task = h.start()
        await pause.reached.wait()
        op = h.submit(Compact())
        await settle()
        pause.until.set()
        await task
        h.assert_done()
        assert h.channel.answers(op) == ["op_rejected"]
        assert h.end().type == "turn_completed"

    asyncio.run(main())


@pytest.mark.parametrize("manual", [False, True], ids=["auto", "own turn"])
def test_an_interrupt_stops_it_and_leaves_the_history(manual):
    async def main():
        pause = Hold(asyncio.Event(), asyncio.Event())
        h = harness([full_step(), [pause]] if not manual else [says("one"), [pause]], commands=[Command("ls")][manual:])
        h.submit()
        if manual:
            await h.run()
            h.session = h.new_session(h.channel.restored())
            h.submit(Compact())
        task = h.start()
        await pause.reached.wait()
        before = h.channel.restored().history
        h.submit(Interrupt())
        await task
        h.assert_done()
        assert h.end().type == "turn_interrupted"
        assert compaction_items(h)[0].status == "interrupted"
        after = h.channel.restored().history
        assert after[: len(before)] == before
        assert len(after) - len(before) == (0 if manual else 1), "only the note about the interrupt"
        assert h.model.closed_early == 1

    asyncio.run(main())


# --- crashes


@pytest.mark.parametrize("manual", [False, True], ids=["in a turn", "own turn"])
def test_a_crash_while_it_runs_is_repeated(manual):
    async def main():
        pause = Hold(asyncio.Event(), asyncio.Event())
        first = says("one") if manual else full_step()
        rest = [says("sum")] if manual else [says("sum"), says("ok")]
        h = harness([first, [pause], *rest], commands=[Command("ls")][manual:])
        h.submit()
        if manual:
            await h.run()
            h.session = h.new_session(h.channel.restored())
            h.submit(Compact())
        task = h.start()
        await pause.reached.wait()
        task.cancel()
        await asyncio.wait([task])
        h.next_owner()
        await h.run()
        h.assert_done()
        assert h.end().type == "turn_completed"
        assert [i.status for i in compaction_items(h)] == ["interrupted", "completed"]
        assert len(compacted_lines(h)) == 1

    asyncio.run(main())


def test_after_a_crash_behind_it_nothing_is_compacted_twice():
    """From every point of the record on, another owner comes to the same end."""

    async def main():
        h = harness([full_step(), says("sum"), says("ok")], commands=[Command("ls")])
        h.submit()
        await h.run()
        lines = h.channel.lines
        at = next(i for i, line in enumerate(lines) if line.type == "compacted")
        restored = restore(lines[: at + 3])
        assert restored.turn is not None
        assert restored.turn.compacted
        assert restored.world_state is not None
        again = harness([says("ok")])
        again.channel.thread_id = h.channel.thread_id
        again.channel.lines = list(lines[: at + 3])
        again.channel.active_turn = restored.turn.turn_id
        again.session = again.new_session(restored)
        await again.run()
        again.assert_done()
        assert again.model.requests[0].window_number == 1
        assert roles(again.model.requests[0]) == ["developer", "user", "user", "user"]

    asyncio.run(main())


def test_a_compact_turn_that_was_done_before_the_crash_only_ends():
    async def main():
        h = AgentHarness([says("one"), says("sum")])
        h.submit()
        await h.run()
        h.session = h.new_session(h.channel.restored())
        op = h.submit(Compact())
        await h.run()
        kept = h.channel.lines[:-1]
        again = AgentHarness([])
        again.channel = h.channel.successor()
        again.channel.lines = list(kept)
        again.channel.active_turn = op.id
        again.channel._waiting[op.id] = op
        again.session = again.new_session(restore(kept))
        await again.run()
        again.assert_done()
        assert again.end().type == "turn_completed"

    asyncio.run(main())


def test_a_crash_before_the_input_of_a_later_turn_was_recorded_loses_nothing():
    async def main():
        pause = Hold(asyncio.Event(), asyncio.Event())
        h = harness([says("one", tokens=FULL), [pause], says("sum"), says("two")])
        h.submit(turn_input("first"))
        await h.run()
        h.session = h.new_session(h.channel.restored())
        h.submit(turn_input("second"))
        task = h.start()
        await pause.reached.wait()
        task.cancel()
        await asyncio.wait([task])
        h.next_owner()
        await h.run()
        h.assert_done()
        assert texts(h.model.requests[-1].input)[-1] == "second"

    asyncio.run(main())


def test_a_long_wait_named_by_the_provider_parks_the_turn():
    async def main():
        steps = [full_step(), [Fail(ErrorCode.MODEL_RATE_LIMITED, retry_after_s=600)], says("sum"), says("ok")]
        h = harness(steps, commands=[Command("ls")])
        h.submit()
        await h.run()
        assert h.types()[-1] == "turn_parked"
        await h.clock.sleep(600)
        h.next_owner()
        await h.run()
        h.assert_done()
        assert h.end().type == "turn_completed"

    asyncio.run(main())


def test_a_review_keeps_its_own_prompt_in_the_new_window():
    from patchyard.agent.prompts import review_prompt
    from patchyard.protocol.ops import Review

    h = harness([full_step(), says("sum"), says("no findings")], commands=[Command("ls")])
    run(h, Review())
    assert [r.kind for r in h.model.requests] == ["review", "compaction", "review"]
    assert review_prompt() in texts(h.model.requests[-1].input)
