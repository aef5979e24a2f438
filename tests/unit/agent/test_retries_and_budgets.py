import asyncio

import pytest

from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.policies import Budgets
from patchyard.testing.builders import completed, done, message, response, says, shell, spec, streamed, usage
from patchyard.testing.harness import AgentHarness
from patchyard.testing.scripted_model import Cut, Fail, Hold
from patchyard.testing.scripted_sandbox import Command

BROKEN = ErrorCode.MODEL_STREAM_FAILED


def run(h):
    async def main():
        h.submit()
        await h.run()
        h.assert_done()

    asyncio.run(main())


def test_a_broken_stream_is_tried_again_and_told():
    h = AgentHarness([[Fail(BROKEN, "socket closed")], says("ok")])
    run(h)
    (event,) = h.of_type("stream_error")
    assert (event.attempt, event.max_attempts, event.error.code) == (1, 5, BROKEN)
    assert "socket closed" in event.message
    assert [r.attempt for r in h.model.requests] == [1, 2]
    assert h.end().type == "turn_completed"


def test_a_stream_that_just_ends_is_a_broken_stream():
    h = AgentHarness([[*done(message("half")), Cut()], says("ok")])
    run(h)
    assert h.of_type("stream_error")[0].error.code is BROKEN


def test_delays_grow_and_vary():
    h = AgentHarness([[Fail(BROKEN)]] * 5 + [says("ok")])
    run(h)
    delays = [s for s in h.clock.slept if s < 10]
    for delay, expected in zip(delays, (0.2, 0.4, 0.8, 1.6, 3.2), strict=True):
        assert expected * 0.9 <= delay <= expected * 1.1


def test_retries_end():
    h = AgentHarness([[Fail(BROKEN, "gone")]] * 3, stream_retries=2)
    run(h)
    assert h.end().type == "turn_failed"
    assert h.end().error.message == "gone"
    assert len(h.of_type("stream_error")) == 2


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.MODEL_UNAUTHORIZED,
        ErrorCode.MODEL_BAD_REQUEST,
        ErrorCode.MODEL_QUOTA_EXCEEDED,
        ErrorCode.CONTEXT_WINDOW_EXCEEDED,
    ],
)
def test_errors_that_a_retry_can_not_cure_fail_at_once(code):
    h = AgentHarness([[Fail(code)]])
    run(h)
    assert h.end().error.code is code
    assert h.of_type("stream_error") == []


def test_a_context_that_is_full_is_told_in_plain_words():
    h = AgentHarness([[Fail(ErrorCode.CONTEXT_WINDOW_EXCEEDED, "context_length_exceeded")]])
    run(h)
    assert "no longer fits" in h.end().error.message


def test_the_servers_delay_is_kept():
    h = AgentHarness([[Fail(ErrorCode.MODEL_RATE_LIMITED, retry_after_s=7)], says("ok")])
    run(h)
    assert 7 in h.clock.slept


def test_a_call_before_the_break_runs_once_and_its_output_goes_along():
    h = AgentHarness([[*done(shell("make", "c1")), Fail(BROKEN)], says("ok")], commands=[Command("make", b"built", seconds=3)])
    run(h)
    second = h.model.requests[1]
    assert [i.type for i in second.input[-2:]] == ["function_call", "function_call_output"]
    assert second.input[-1].output.endswith("Output:\nbuilt")
    assert len(h.box.requests) == 1
    assert h.end().tool_calls == 1


def test_partial_text_before_the_break_is_closed_and_not_sent_back():
    events = streamed("Half a sentence", item_id="m1")
    h = AgentHarness([[*events[:-1], Fail(BROKEN)], [*streamed("Half a sentence", item_id="m1"), completed()]])
    run(h)
    items = [e.item for e in h.of_type("item_completed") if e.item.type == "agent_message"]
    assert [i.status for i in items] == ["interrupted", "completed"]
    assert [getattr(i, "role", None) for i in h.model.requests[1].input] == ["developer", "user", "user"]


# --- budgets that end the turn: test_more_budget.py has those that people are asked for


def ends_at(**limits):
    return spec(budgets=Budgets(when_spent="end", **limits))


@pytest.mark.parametrize("task", [ends_at(model_requests=1), spec(budgets=Budgets(model_requests=1), approval="never")])
def test_nobody_is_asked_where_the_task_says_so(task):
    h = AgentHarness([response(shell("ls", "c1"))], commands=[Command("ls")], spec=task)
    run(h)
    assert h.of_type("budget_request") == []
    assert h.end().error.code is ErrorCode.BUDGET_EXCEEDED


def test_a_budget_of_requests_ends_the_turn():
    steps = [response(shell("ls", f"c{i}")) for i in range(3)]
    h = AgentHarness(steps, commands=[Command("ls")] * 3, spec=ends_at(model_requests=3))
    run(h)
    end = h.end()
    assert (end.type, end.error.code, end.model_requests) == ("turn_failed", ErrorCode.BUDGET_EXCEEDED, 3)
    assert "model requests (3)" in end.error.message


def test_the_model_is_told_once_to_wrap_up():
    steps = [response(shell("ls", f"c{i}")) for i in range(9)]
    h = AgentHarness([*steps, says("done")], commands=[Command("ls")] * 9, spec=ends_at(model_requests=10))
    run(h)
    assert h.end().type == "turn_completed"
    notes = [i for i in h.model.requests[-1].input if i.type == "message" and "<budget>" in i.content[0].text]
    assert len(notes) == 1
    assert "8 of 10 model requests" in notes[0].content[0].text


def test_a_small_budget_still_gets_its_wrap_up_step():
    h = AgentHarness([response(shell("ls", "c1")), says("done")], commands=[Command("ls")], spec=ends_at(model_requests=2))
    run(h)
    assert "<budget>" in h.model.requests[1].input[-1].content[0].text


def test_one_request_may_be_all():
    h = AgentHarness([says("done")], spec=ends_at(model_requests=1))
    run(h)
    assert h.end().type == "turn_completed"


def test_a_budget_of_tokens():
    step = response(shell("ls", "c1"), tokens=usage(900, 200))
    h = AgentHarness([step, says("so far")], commands=[Command("ls")], spec=ends_at(tokens=1000))
    run(h)
    assert (h.end().type, h.end().error.code) == ("turn_failed", ErrorCode.BUDGET_EXCEEDED)
    assert "tokens (1000)" in h.end().error.message
    assert h.end().usage.total_tokens == 1115


def test_a_budget_that_is_passed_at_once_still_gets_a_last_answer():
    step = response(shell("ls", "c1"), tokens=usage(900, 200))
    h = AgentHarness([step, says("half of it")], commands=[Command("ls")], spec=ends_at(tokens=1000))
    run(h)
    last = h.model.requests[1]
    assert last.tools == ()
    assert "No tool can be called" in last.input[-1].content[0].text
    assert h.gate.ended[-1].last_agent_message == "half of it"


def test_who_was_told_to_wrap_up_gets_no_further_answer():
    steps = [response(shell("ls", f"c{i}"), tokens=usage(300, 100)) for i in range(3)]
    h = AgentHarness(steps, commands=[Command("ls")] * 3, spec=ends_at(tokens=1000))
    run(h)
    assert h.end().error.code is ErrorCode.BUDGET_EXCEEDED
    assert "<budget>" in h.model.requests[2].input[-1].content[0].text


def test_after_a_crash_the_model_is_not_told_again():
    async def main():
        pause = Hold(asyncio.Event(), asyncio.Event())
        steps = [response(shell("ls", "c1"), tokens=usage(800, 50)), [pause], says("ok")]
        h = AgentHarness(steps, commands=[Command("ls")], spec=ends_at(tokens=1000))
        h.submit()
        task = h.start()
        await pause.reached.wait()
        task.cancel()
        await asyncio.wait([task])
        h.next_owner()
        await h.run()
        h.assert_done()
        texts = [p.text for i in h.model.requests[-1].input if i.type == "message" for p in i.content]
        assert sum("<budget>" in text for text in texts) == 1

    asyncio.run(main())


def test_a_budget_of_tool_calls_is_kept_inside_a_response():
    h = AgentHarness(
        [response(shell("a", "c1"), shell("b", "c2"), shell("c", "c3")), says("so far")],
        commands=[Command("a"), Command("b")],
        spec=ends_at(tool_calls=2),
    )
    run(h)
    assert "tool calls (2)" in h.end().error.message
    outputs = {i.call_id: i.output for i in h.channel.restored().history if i.type == "function_call_output"}
    assert outputs["c3"].startswith("Not run")


def test_a_budget_of_money_counts_what_has_a_price():
    steps = [response(shell("ls", f"c{i}"), tokens=usage(50, 50)) for i in range(2)]
    steps.append(says("so far", tokens=usage(5, 5)))
    h = AgentHarness(steps, commands=[Command("ls")] * 2, spec=ends_at(cost_usd=1.5), price=0.01)
    run(h)
    assert "US dollars (1.5)" in h.end().error.message
    assert h.end().cost_usd == 2.1
    assert h.of_type("token_count")[-1].cost_usd == 2.1


def test_without_a_price_the_cost_is_not_known_and_people_are_told_once():
    steps = [response(shell("ls", "c1")), says("ok")]
    h = AgentHarness(steps, commands=[Command("ls")], spec=ends_at(cost_usd=0.01))
    run(h)
    assert h.end().cost_usd is None
    (warning,) = h.of_type("warning")
    assert "No price is configured for the model model-x" in warning.message
    assert "0.01 US dollars" in warning.message


def test_wall_time_breaks_a_hanging_stream():
    async def main():
        pause = Hold(asyncio.Event(), asyncio.Event())
        h = AgentHarness([[pause]], spec=ends_at(wall_time_s=30))
        h.submit()
        await h.run()
        h.assert_done()
        assert h.end().error.code is ErrorCode.BUDGET_EXCEEDED
        assert h.end().duration_ms == 30_000

    asyncio.run(main())


def test_wall_time_breaks_a_hanging_tool():
    h = AgentHarness(
        [response(shell("hang", "c1", yield_time_ms=30_000))],
        commands=[Command("hang", hangs=True)],
        spec=ends_at(wall_time_s=10),
    )
    run(h)
    assert h.end().error.code is ErrorCode.BUDGET_EXCEEDED
    assert h.box.processes[0].killed_with == 9
    outputs = [i.output for i in h.channel.restored().history if i.type == "function_call_output"]
    assert outputs == ["Wall time: 10.0 seconds\nstopped: the turn's wall time is used up"]


def test_wall_time_warns_before_it_ends():
    h = AgentHarness(
        [response(shell("a", "c1")), says("done")],
        commands=[Command("a", seconds=8.5)],
        spec=ends_at(wall_time_s=10),
    )
    run(h)
    assert "seconds of wall time" in h.model.requests[1].input[-1].content[0].text


def test_a_failed_turn_keeps_steers_for_the_next_one():
    async def main():
        from patchyard.testing.builders import turn_input
        from patchyard.testing.clock import settle

        pause = Hold(asyncio.Event(), asyncio.Event())
        h = AgentHarness([[pause, Fail(ErrorCode.MODEL_UNAUTHORIZED)]])
        h.submit()
        task = h.start()
        await pause.reached.wait()
        h.submit(turn_input("and this"))
        await settle()
        pause.until.set()
        await task
        h.assert_done()
        assert h.end().type == "turn_failed"
        assert h.channel.restored().history[-1].content[0].text == "and this"

    asyncio.run(main())


def test_usage_is_summed_over_the_thread():
    h = AgentHarness([response(shell("ls", "c1")), says("ok")], commands=[Command("ls")])
    run(h)
    counts = h.of_type("token_count")
    assert [c.last.total_tokens for c in counts] == [15, 15]
    assert [c.total.total_tokens for c in counts] == [15, 30]
    assert counts[0].model_context_window == 272_000
