"""Scripts: what is accepted, and how mistakes are told."""

import pytest

from patchyard.replay import ScriptError, parse_script


def test_the_form_of_the_handbook_is_accepted_as_yaml_and_as_json() -> None:
    yaml_script = parse_script(
        """
steps:
  - items:
      - reasoning: Look first.
      - call: exec_command
        arguments: {cmd: ls}
    usage: {input_tokens: 10, output_tokens: 3}
    delay_ms: 5
    token_delay_ms: 1
  - error: {status: 429, code: rate_limit_exceeded, message: slow down, retry_after: 1.5}
  - items: [{custom: apply_patch, input: x}]
    cut_after: 3
  - expect: {contains: [ok]}
    items: [{message: Done}]
"""
    )
    json_script = parse_script(yaml_script.model_dump_json(exclude_none=True, exclude_defaults=True))
    assert json_script == yaml_script


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("steps:\n  - items:\n      - mesage: hi\n", "line 3, steps[0].items[0]: an item needs exactly one of the keys"),
        ("steps:\n  - itemz: []\n", "line 2, steps[0].itemz: there is no such key here"),
        ("steps:\n  - delay_ms: -1\n", "line 2, steps[0].delay_ms:"),
        ("steps:\n  - items: [{call: x, arguments: 5}]\n", "line 2, steps[0].items[0].arguments"),
        ("steps:\n  - error: {status: 200}\n", "line 2, steps[0].error.status"),
        ("steps:\n  - delay_ms: 1\n    delay_ms: 2\n", "line 3, steps[0].delay_ms: the key is given twice"),
        ("steps:\n  - error: {status: 500}\n    items: [{message: x}]\n", "line 2, steps[0]: an error with a status"),
        ("description: empty\n", "the script has neither steps nor threads"),
        ("- a\n", "line 1: the file must hold a mapping"),
        ("steps: [\n", "line 2, column 1"),
        ('{"steps": [,]}', "line 1, column"),
    ],
)
def test_a_mistake_is_told_with_its_place(text: str, place: str) -> None:
    with pytest.raises(ScriptError) as caught:
        parse_script(text, source="demo.yaml")
    assert "demo.yaml" in str(caught.value)
    assert place in str(caught.value)


def test_a_call_that_is_also_a_message_is_refused() -> None:
    with pytest.raises(ScriptError, match=r"steps\[0\]\.items\[0\]\.call: there is no such key here"):
        parse_script("steps: [{items: [{message: a, call: b}]}]")
