"""The pure parts: what a new window is made of, what is left out, who wrote a message, images, instructions by family."""

import asyncio
import time

import pytest

from patchyard.agent.compaction.leaving_out import LEAST_TOKENS, shortened, with_less, without_oldest
from patchyard.agent.compaction.window import fresh_window_note, last_plan, new_window, user_messages
from patchyard.agent.context import tokens
from patchyard.agent.context.history import History
from patchyard.agent.context.marks import is_user_message, tagged
from patchyard.agent.prompts import FAMILIES, base_instructions, family_for, prompt_version
from patchyard.protocol.model_items import (
    FunctionCall,
    FunctionCallOutput,
    InputImage,
    InputText,
    Message,
    OutputText,
    Reasoning,
)
from patchyard.protocol.model_profiles import ModelProfile
from patchyard.protocol.ops import ImageInput, TextInput, ThreadSettings, TurnInput, TurnOverrides
from patchyard.testing.builders import response, says, shell, spec, turn_input
from patchyard.testing.harness import AgentHarness
from patchyard.testing.scripted_sandbox import Command

IMAGE = "data:image/png;base64,AAAA"


def user(text):
    return Message(role="user", content=(InputText(text=text),))


def assistant(text):
    return Message(role="assistant", content=(OutputText(text=text),))


def pair(call_id, text="out"):
    return (FunctionCall(call_id=call_id, name="x", arguments="{}"), FunctionCallOutput(call_id=call_id, output=text))


# --- who wrote it


@pytest.mark.parametrize(
    ("text", "by_user"),
    [
        ("Fix it.", True),
        ("<environment_context> is what I want to ask about", True),
        ("<environment_context>\n  <cwd>/w</cwd>\n</environment_context>", False),
        ("# AGENTS.md instructions for /w\n\n<INSTRUCTIONS>\nx\n</INSTRUCTIONS>", False),
        ("# AGENTS.md instructions for humans", True),
        (tagged("conversation_summary", "s"), False),
        ("<turn_aborted>\nx\n</turn_aborted>", False),
        ('<hook_prompt hook_run_id="1">do more</hook_prompt>', False),
        ("The verify command ended with exit code 1.", True),
    ],
)
def test_what_counts_as_a_users_message(text, by_user):
    assert is_user_message(user(text)) is by_user


def test_only_messages_of_users_count():
    assert not is_user_message(assistant("a"))
    assert not is_user_message(Message(role="developer", content=(InputText(text="a"),)))
    assert is_user_message(Message(role="user", content=(InputImage(image_url=IMAGE),)))


# --- what is kept


def test_the_newest_messages_are_kept_up_to_the_budget():
    items = [user(f"{i} " + "x" * 400) for i in range(10)]
    kept = user_messages(items, 300)
    assert kept[-1] == items[-1]
    assert sum(map(tokens.of_item, kept)) <= 300


def test_the_message_that_does_not_fit_is_cut_in_the_middle():
    kept = user_messages([user("old"), user("BEGIN " + "x " * 40_000 + " END"), user("new")], 1_000)
    assert [m.content[0].text[:5] for m in kept] == ["BEGIN", "new"]
    assert kept[0].content[0].text.endswith("END")
    assert "tokens" in kept[0].content[0].text
    assert sum(map(tokens.of_item, kept)) <= 1_000


def test_images_count_and_are_named_when_they_are_left_out():
    big = Message(role="user", content=(InputText(text="look " * 2_000), InputImage(image_url=IMAGE)))
    (kept,) = user_messages([big], 1_000)
    assert "1 images left out" in kept.content[0].text


def test_where_the_context_stands():
    a, b, tail, context = user("a"), user("b"), user("tail"), user("context")
    assert new_window([a, b], tail, context=(context,), in_turn=True) == (a, context, b, tail)
    assert new_window([], tail, context=(context,), in_turn=True) == (context, tail)
    assert new_window([a, b], tail, context=(), in_turn=False) == (a, b, tail)


# --- what is left out


def test_what_the_model_said_at_once_goes_together():
    one = [Reasoning(id="r1"), *(p[0] for p in (pair("c1"), pair("c2")))]
    items = [user("a"), *one, pair("c1")[1], user("steer"), pair("c2")[1], user("b")]
    assert without_oldest(items, tokens.of_item(items[0]) + 1) == [user("steer"), user("b")]


def test_nothing_left_is_an_empty_list():
    assert without_oldest([user("a"), *pair("c")], 10_000) == []


def test_one_step_with_more_than_fits_keeps_a_part_of_everything():
    step = [pair(f"c{n}", f"BEGIN {n} " + "x " * 8_000 + "END")[1] for n in range(5)]
    items = [user("a"), *(pair(f"c{n}")[0] for n in range(5)), *step]
    less = with_less(items, 100_000)
    assert [item.type for item in less] == [item.type for item in items]
    assert sum(map(tokens.of_item, less)) < 0.6 * sum(map(tokens.of_item, items))
    assert all(item.output.startswith(f"BEGIN {n}") and item.output.endswith("END") for n, item in enumerate(less[6:]))


def test_shortening_comes_to_an_end():
    parts = (InputText(text="see " * 4_000), InputImage(image_url=IMAGE))
    items = [user("word " * 20_000), pair("c")[0], FunctionCallOutput(call_id="c", output=parts)]
    rounds = 0
    while less := shortened(items):
        assert sum(map(tokens.of_item, less)) < sum(map(tokens.of_item, items))
        items, rounds = less, rounds + 1
    assert max(map(tokens.of_item, items)) < 2 * LEAST_TOKENS
    assert rounds < 12


def test_the_cost_does_not_grow_with_the_square_of_the_items():
    history = History([item for i in range(10_000) for item in pair(f"c{i}", "x" * 1_000)] + [user("go on")])
    history.prompt()
    started = time.thread_time()
    kept = user_messages(history.items, 20_000)
    items = without_oldest(list(history.prompt()), 20_000)
    new_window(kept, user("summary"), context=(), in_turn=True)
    assert time.thread_time() - started < 1  # about 15 ms; a minute if each item looked at each other
    assert len(items) < 20_000


# --- the plan


def plan(arguments):
    return FunctionCall(call_id="p", name="update_plan", arguments=arguments)


def test_the_newest_plan_is_found_and_handed_on_again():
    made = plan('{"explanation": "why", "plan": [{"step": "a", "status": "pending"}]}')
    assert last_plan([made, user("x")]) == "why\n- [pending] a"
    assert last_plan([user(fresh_window_note([made]))]) == "why\n- [pending] a"
    for broken in ("no json", "[]", '{"plan": 5}', '{"plan": [{"step": "a"}]}'):
        assert last_plan([plan(broken)]) is None
    assert "plan" in fresh_window_note([made])
    assert "- [" not in fresh_window_note([])


# --- images


def run(h, *ops):
    async def main():
        for op in ops:
            h.submit(op)
            await h.run()
            h.session = h.new_session(h.channel.restored())
        h.assert_done()

    asyncio.run(main())


def with_image(text="what is this?"):
    return TurnInput(items=(TextInput(text=text), ImageInput(url=IMAGE)))


def images_in(request):
    return sum(p.type == "input_image" for i in request.input if i.type == "message" for p in i.content)


def test_a_model_that_can_not_read_images_is_told_that_there_was_one():
    h = AgentHarness([says("ok")], models={"model-x": ModelProfile(images=False)})
    run(h, with_image())
    asked = h.model.requests[0].input[-1].content
    assert (images_in(h.model.requests[0]), asked[1].text) == (0, "[An image was left out here: this model can't read images.]")
    assert h.channel.restored().history[2].content[1].type == "input_image", "the record keeps it"


def test_a_change_to_a_model_without_images_opens_a_window_with_the_same_content():
    models = {"blind": ModelProfile(images=False)}
    h = AgentHarness([says("one"), says("two"), says("three")], models=models)
    run(
        h,
        with_image(),
        ThreadSettings(overrides=TurnOverrides(model="blind")),
        turn_input("and now?"),
        turn_input("again"),
    )
    assert [r.window_number for r in h.model.requests] == [0, 1, 1]
    assert [images_in(r) for r in h.model.requests] == [1, 0, 0]
    assert len(h.model.requests[1].input) > len(h.model.requests[0].input)
    assert [line.payload.reason for line in h.channel.lines if line.type == "compacted"] == ["model_changed"]


def test_and_back_again():
    models = {"blind": ModelProfile(images=False)}
    h = AgentHarness([says("one"), says("two")], models=models, spec=spec(model="blind"))
    run(h, turn_input("a"), ThreadSettings(overrides=TurnOverrides(model="model-x")), with_image())
    assert [r.window_number for r in h.model.requests] == [0, 0], "no image was there to show differently"
    assert [images_in(r) for r in h.model.requests] == [0, 1]


def test_images_in_outputs_are_replaced_too():
    parts = (InputText(text="see"), InputImage(image_url=IMAGE))
    history = History([pair("c")[0], FunctionCallOutput(call_id="c", output=parts)], images=False)
    assert [p.type for p in history.prompt()[1].output] == ["input_text", "input_text"]
    assert tokens.of_item(history.items[1]) > tokens.IMAGE_TOKENS


# --- where and what is told


def test_instructions_of_the_folder_that_the_turn_works_in():
    h = AgentHarness([says("ok"), says("ok")])
    folders = h.source.folders
    run(h, turn_input("a"), ThreadSettings(overrides=TurnOverrides(cwd="/workspace/src/app")), turn_input("b"))
    assert folders == ["", "src/app"]
    assert "<cwd>/workspace/src/app</cwd>" in h.model.requests[1].input[-2].content[0].text


def test_an_output_that_a_tool_did_not_bound_is_cut():
    h = AgentHarness(
        [response(shell("cat x", "c1", max_output_tokens=100_000)), says("ok")],
        commands=[Command("cat x", b"line\n" * 40_000)],
        output_tokens=1_000,
    )
    run(h, turn_input())
    assert tokens.of_text(h.model.outputs()["c1"]) <= 1_250


@pytest.mark.parametrize(
    ("model", "family"),
    [("gpt-5.5", "default"), ("qwen3-coder", "open"), ("meta/Llama-4", "open"), ("gpt-oss-120b", "open"), ("o5", "default")],
)
def test_each_model_has_its_family(model, family):
    assert family_for(model) == family


def test_a_profile_may_name_the_family():
    h = AgentHarness([says("ok")], models={"model-x": ModelProfile(family="open")})
    run(h, turn_input())
    assert h.model.requests[0].instructions == base_instructions("open")
    context = next(line.payload for line in h.channel.lines if line.type == "turn_context")
    assert context.prompt_version == prompt_version("open")
    (turn,) = [s for s in h.telemetry.spans if s.name.startswith("invoke_agent")]
    assert turn.attributes["patchyard.prompt.version"] == prompt_version("open")


def test_versions_differ_by_family_and_name_it():
    versions = {prompt_version(name) for name in FAMILIES}
    assert len(versions) == len(FAMILIES)
    for name, family in FAMILIES.items():
        assert prompt_version(name).startswith(f"{name}/{family.version}+sha256:")
