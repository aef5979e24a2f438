"""What holds for any history that a new window is made of."""

from hypothesis import given, settings
from hypothesis import strategies as st

from patchyard.agent.compaction.leaving_out import without_oldest
from patchyard.agent.compaction.window import user_messages
from patchyard.agent.context import tokens
from patchyard.protocol.model_items import FunctionCall, FunctionCallOutput, InputText, Message, OutputText, Reasoning
from patchyard.testing.scripted_model import check_pairing


def user(text):
    return Message(role="user", content=(InputText(text=text),))


def assistant(text):
    return Message(role="assistant", content=(OutputText(text=text),))


def pair(call_id, text="out"):
    return (FunctionCall(call_id=call_id, name="x", arguments="{}"), FunctionCallOutput(call_id=call_id, output=text))


@given(st.lists(st.text(max_size=3_000), max_size=12), st.integers(0, 3_000))
@settings(max_examples=60, deadline=None)
def test_what_is_kept_never_passes_the_budget(texts, budget):
    kept = user_messages([user(text) for text in texts], budget)
    assert sum(map(tokens.of_item, kept)) <= budget


@given(st.lists(st.sampled_from(["user", "say", "think", "call", "two", "late"]), max_size=25), st.integers(1, 400))
@settings(max_examples=120, deadline=None)
def test_pairs_survive_any_cut(kinds, amount):
    items, waiting = [], []
    for number, kind in enumerate(kinds):
        call, output = pair(f"c{number}", "x" * 40)
        match kind:
            case "user":
                items.append(user(f"u{number:030}"))
            case "say":
                items.append(assistant(f"s{number:030}"))
            case "think":
                items.append(Reasoning(id=f"r{number}"))
            case "call":
                items += [call, output]
            case "two":
                second = pair(f"d{number}")
                items += [call, second[0], output, second[1]]
            case _:
                items.append(call)
                waiting.append(output)
    items += waiting
    left = without_oldest(items, amount)
    check_pairing(left)
    assert [i for i in items if i in left] == left
    gone = sum(map(tokens.of_item, items)) - sum(map(tokens.of_item, left))
    assert gone >= amount or left == []
    if left and not any(isinstance(i, Reasoning) for i in left[:1]):
        assert not isinstance(left[0], FunctionCallOutput)
