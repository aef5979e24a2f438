"""Windows that end without a summary: what the model is told of them, and the two tools by which it chooses their end."""

import asyncio
import json
import re

import pytest

from patchyard.agent.compaction.meter import WindowUse
from patchyard.agent.compaction.window import NOTES_TOKENS, asks_for_window, fresh_window_note, last_notes, last_plan
from patchyard.agent.context import tokens
from patchyard.agent.prompts import window_text
from patchyard.protocol.model_items import FunctionCall, FunctionCallOutput, InputText, Message
from patchyard.protocol.ops import Compact, Interrupt
from patchyard.protocol.policies import Budgets
from patchyard.testing.builders import call, message, raw_call, response, says, shell, spec, turn_input, usage
from patchyard.testing.clock import settle
from patchyard.testing.harness import AgentHarness
from patchyard.testing.scripted_model import Cut, Hold, Pause
from patchyard.testing.scripted_sandbox import Command
from tests.unit.agent.kit import run, texts

WINDOW = 100_000
LIMIT = 80_000
OWN = {"compaction": "token_budget", "model_context_window": WINDOW}
BOTH = {"get_context_remaining", "new_context_window"}


def harness(steps, *, listings=0, **fields):
    return AgentHarness(steps, **{"commands": [Command("ls")] * listings, **OWN, **fields})


def looks(call_id, used=100):
    return response(shell("ls", call_id), tokens=usage(used, 0))


def new_window(call_id="w1", **arguments):
    return call("new_context_window", call_id, **arguments)


def compacted(h):
    return [line.payload for line in h.channel.lines if line.type == "compacted"]


def windows(h):
    return [request.window_number for request in h.model.requests]


def note_of(request):
    (note,) = [text for text in texts(request.input) if text.startswith("<new_context_window>")]
    return note


# --- who is offered them


@pytest.mark.parametrize(("method", "offered"), [("token_budget", BOTH), ("local", set()), ("remote", set())])
def test_only_this_way_has_them(method, offered):
    h = AgentHarness([says("ok")], compaction=method)
    run(h)
    names = {tool["name"] for tool in h.model.requests[0].tools}
    assert names & BOTH == offered


def test_a_model_that_calls_them_elsewhere_is_told_that_there_are_none():
    h = AgentHarness([response(call("new_context_window", "w1")), says("ok")])
    run(h)
    assert h.model.outputs()["w1"] == "unsupported call: new_context_window"
    assert compacted(h) == []


# --- get_context_remaining


def numbers(text):
    return [int(number) for number in re.findall(r"\d+", text)]


def asks_what_is_left(used):
    return response(call("get_context_remaining", "g1"), tokens=usage(used, 0))


def test_what_is_left_is_counted_to_where_the_window_ends():
    h = harness([looks("c1", 30_000), asks_what_is_left(31_000), says("ok")], listings=1)
    run(h)
    assert numbers(h.model.outputs()["g1"]) == [LIMIT - 31_000, 31_000, LIMIT]


def test_before_the_first_count_instructions_and_tools_are_estimated():
    asked = asks_what_is_left(15)
    h = harness([[*asked[:-1], Pause(1), asked[-1]], says("ok")])
    run(h)
    _, used, _ = numbers(h.model.outputs()["g1"])
    sent = h.model.requests[0]
    assert used > tokens.of_text(sent.instructions) + sum(tokens.of_text(json.dumps(tool)) for tool in sent.tools)


def test_what_is_left_is_never_less_than_nothing():
    assert WindowUse(used=101, limit=100, window=120).left == 0


# --- new_context_window


def test_the_window_begins_between_two_steps_with_the_notes():
    notes = "The bug is in b.py line 3. `pytest -q` needs PYTHONPATH=src."
    h = harness([looks("c1"), response(new_window(notes=notes)), looks("c2"), says("ok")], listings=2)
    run(h)
    assert windows(h) == [0, 0, 1, 1]
    first = h.model.requests[2].input
    assert [getattr(item, "role", item.type) for item in first] == ["developer", "user", "user", "user"]
    assert notes in note_of(h.model.requests[2])
    (line,) = compacted(h)
    assert (line.reason, line.method, line.summary) == ("model_asked", "token_budget", None)
    (item,) = [e.item for e in h.of_type("item_completed") if e.item.type == "context_compaction"]
    assert (item.trigger, item.window_number, item.status) == ("auto", 1, "completed")
    assert h.end().model_requests == 4, "no request is spent on it"


def test_plan_and_notes_go_on_until_newer_ones_take_their_place():
    plan = call("update_plan", "p1", plan=[{"step": "fix", "status": "in_progress"}])
    steps = [
        response(plan),
        response(new_window("w1", notes="first")),
        looks("c1", LIMIT + 100),
        looks("c2"),
        response(new_window("w2", notes="second")),
        says("ok"),
    ]
    h = harness(steps, listings=2)
    run(h)
    assert [line.reason for line in compacted(h)] == ["model_asked", "context_limit", "model_asked"]
    first, full, second = (note_of(h.model.requests[at]) for at in (2, 3, 5))
    for note in (first, full):
        assert "first" in note
        assert "- [in_progress] fix" in note
    assert "second" in second
    assert "first" not in second
    assert "- [in_progress] fix" in second


def test_a_step_that_also_steers_keeps_the_steer_behind_the_note():
    async def main():
        pause = Hold(asyncio.Event(), asyncio.Event())
        asked = response(new_window())
        h = harness([looks("c1"), [pause, *asked], says("ok")], listings=1)
        h.submit()
        task = h.start()
        await pause.reached.wait()
        h.submit(turn_input("and this"))
        await settle()
        pause.until.set()
        await task
        h.assert_done()
        assert texts(h.model.requests[2].input)[-2].startswith("<new_context_window>")
        assert texts(h.model.requests[2].input)[-1] == "and this"

    asyncio.run(main())


def test_a_window_that_has_only_begun_is_not_closed():
    h = harness([response(message("I begin anew."), new_window()), says("ok")])
    run(h)
    assert "only just begun" in h.model.outputs()["w1"]
    assert compacted(h) == []


def test_asking_again_and_again_opens_one_window():
    h = harness([looks("c1"), response(new_window("w1")), response(new_window("w2")), says("ok")], listings=1)
    run(h)
    assert windows(h) == [0, 0, 1, 1]


def test_bad_arguments_are_told():
    h = harness([looks("c1"), response(raw_call("new_context_window", '{"notes": 5}', "w1")), says("ok")], listings=1)
    run(h)
    assert "`notes`" in h.model.outputs()["w1"]
    assert compacted(h) == []


def test_it_is_not_forgotten_when_the_stream_breaks_after_the_call():
    h = harness([looks("c1"), [*response(new_window())[:-1], Cut()], looks("c2"), says("ok")], listings=2)
    run(h)
    assert windows(h) == [0, 0, 0, 1]


def test_a_request_of_a_person_in_the_same_step_makes_one_window():
    async def main():
        pause = Hold(asyncio.Event(), asyncio.Event())
        h = harness([looks("c1"), [pause, *response(new_window())], says("ok")], listings=1)
        h.submit()
        task = h.start()
        await pause.reached.wait()
        op = h.submit(Compact())
        await settle()
        pause.until.set()
        await task
        h.assert_done()
        assert h.channel.answers(op) == ["op_applied"]
        assert [line.reason for line in compacted(h)] == ["manual"]

    asyncio.run(main())


def test_the_last_request_is_for_the_answer():
    h = harness([looks("c1"), response(new_window()), says("ok")], listings=1, spec=spec(budgets=Budgets(model_requests=3)))
    run(h)
    assert compacted(h) == []


def test_a_promise_outlives_an_interrupt_and_holds_before_the_next_turn():
    async def main():
        sleeping = Command("sleep 60", hangs=True)
        steps = [looks("c1"), response(new_window(notes="the bug is in b.py"), shell("sleep 60", "c2")), says("two")]
        h = harness(steps, commands=[Command("ls"), sleeping])
        h.submit(turn_input("first"))
        task = h.start()
        await sleeping.started.wait()
        h.submit(Interrupt())
        await task
        h.next_owner()
        h.submit(turn_input("second"))
        await h.run()
        h.assert_done()
        assert windows(h) == [0, 0, 1]
        assert "the bug is in b.py" in note_of(h.model.requests[2])
        assert texts(h.model.requests[2].input)[-1] == "second"

    asyncio.run(main())


def test_a_worker_that_dies_before_it_opens_the_window_leaves_the_promise_to_the_next():
    async def main():
        sleeping = Command("sleep 60", hangs=True)
        h = harness(
            [looks("c1"), response(new_window(), shell("sleep 60", "c2")), says("ok")], commands=[Command("ls"), sleeping]
        )
        h.submit()
        task = h.start()
        await sleeping.started.wait()
        h.session.suspend()
        await task
        h.next_owner()
        await h.run()
        h.assert_done()
        assert windows(h) == [0, 0, 1]
        assert [line.reason for line in compacted(h)] == ["model_asked"]

    asyncio.run(main())


def test_a_hooks_refusal_is_told_and_the_window_goes_on():
    class Hooks:
        asked = 0

        async def before(self, trigger):
            self.asked += 1
            return "not before Monday"

        async def after(self, trigger):
            raise AssertionError("nothing was opened")

    h = harness([looks("c1"), response(new_window()), looks("c2"), says("ok")], listings=2)
    hooks = h.session._thread.compaction_hooks = Hooks()
    run(h)
    assert (compacted(h), hooks.asked, h.end().type) == ([], 1, "turn_completed")
    (told_so,) = [text for text in texts(h.model.requests[-1].input) if text.startswith("<context_window_refused>")]
    assert "not before Monday" in told_so


# --- what the record and the texts are read for


def granted(call_id="w1"):
    return FunctionCallOutput(call_id=call_id, output=window_text("asked"))


def dev(text):
    return Message(role="developer", content=(InputText(text=text),))


def test_when_a_window_counts_as_promised():
    asked = FunctionCall(call_id="w1", name="new_context_window", arguments="{}")
    refused = dev("<context_window_refused>\nA hook refused.\n</context_window_refused>")
    other = FunctionCall(call_id="w1", name="exec_command", arguments="{}")
    assert asks_for_window([asked, granted(), dev("<budget>\nx\n</budget>")])
    assert asks_for_window([asked, granted(), refused, asked.model_copy(update={"call_id": "w2"}), granted("w2")])
    assert not asks_for_window([asked, granted(), refused])
    assert not asks_for_window([asked, FunctionCallOutput(call_id="w1", output=window_text("too_early"))])
    assert not asks_for_window([other, granted()])
    assert not asks_for_window([])


def test_notes_are_bounded_and_handed_on():
    long = FunctionCall(call_id="w1", name="new_context_window", arguments='{"notes": "' + "word " * 20_000 + 'end"}')
    notes = last_notes([long])
    assert tokens.of_text(notes) <= NOTES_TOKENS * 1.1
    assert notes.endswith("end")
    first = Message(role="user", content=(InputText(text=fresh_window_note([long])),))
    assert last_notes([first]) == notes
    assert last_plan([first]) is None
    without = FunctionCall(call_id="w2", name="new_context_window", arguments="{}")
    assert last_notes([first, without]) == notes, "asking without notes keeps the earlier ones"
    for broken in ("no json", "[]", '{"notes": 5}', '{"notes": " "}'):
        assert last_notes([FunctionCall(call_id="w", name="new_context_window", arguments=broken)]) is None


# --- what is told in time


def told(h):
    found = []
    for text in texts(h.model.requests[-1].input):
        if text.startswith("<context_window>"):
            percent = re.search(r"(\d+) % of", text)
            found.append(percent[1] if percent else "low")
    return found


def fills(*used):
    return [*(looks(f"c{at}", tokens) for at, tokens in enumerate(used)), says("ok")]


@pytest.mark.parametrize(
    ("used", "marks"),
    [
        ((24_000, 26_000, 51_000, 51_500), ["25", "50"]),
        ((26_000, 73_000, 73_500, 76_000), ["25", "low"]),
        ((26_000, 51_000, 70_000, 73_000, 74_000), ["25", "50", "low"]),
        ((77_000,), ["low"]),
    ],
)
def test_each_mark_is_told_once_and_the_last_one_when_little_is_left(used, marks):
    h = harness(fills(*used), listings=len(used))
    run(h)
    assert told(h) == marks


def test_a_large_window_has_all_four():
    used = (66_000, 131_000, 196_000, 206_000, 207_000)
    h = harness(fills(*used), listings=len(used), model_context_window=260_000, context_budget=0.85)
    run(h)
    assert told(h) == ["25", "50", "75", "low"]


def test_a_new_window_is_told_its_own_marks():
    h = harness(
        [looks("c1", 30_000), response(new_window(), tokens=usage(31_000, 0)), looks("c2", 26_000), says("ok")], listings=2
    )
    run(h)
    assert told(h) == ["25"]
