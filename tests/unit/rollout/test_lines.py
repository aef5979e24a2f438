import json

import pytest

from patchyard.protocol.model_items import FunctionCallOutput, OpaqueItem
from patchyard.protocol.rollout_lines import WorldState
from patchyard.rollout import LineInvalid, OrdinalGap, check_lineage, decode_line, encode_line, split_segment
from tests.rollout_lines import Thread, user, verified_task


def test_lines_survive_encoding() -> None:
    thread = verified_task()
    thread.add(user("ünï\0code 𝄞 \u2028 line"), FunctionCallOutput(call_id="c", output="a\nb"))
    thread.add(WorldState(full=True, state={"cleared": None, "deep": {"x": None}}))
    for line in thread.lines:
        data = encode_line(line)
        assert b"\n" not in data
        assert decode_line(data) == line
        assert decode_line(data.decode()) == line


def test_items_of_kinds_that_we_do_not_know_come_back_unchanged() -> None:
    thread = Thread()
    raw = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": None, "n": [1, None]}}
    line = thread.add(user("x"))[0].model_copy(update={"payload": OpaqueItem.model_validate(raw)})
    assert json.loads(encode_line(line))["payload"] == raw
    assert decode_line(encode_line(line)) == line


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "Invalid JSON"),
        (b'{"type": "event_msg", "ordinal"', "Invalid JSON"),
        (b"[]", "line"),
        (b'{"type": "nonsense", "ordinal": 0, "timestamp": 1, "payload": {}}', "nonsense"),
        (
            b'{"type": "effect", "ordinal": 0, "timestamp": 1, "payload": {"key": "k", "stage": "intent"}}',
            "effect.payload.kind",
        ),
        (b"\xff\xfe", "Invalid JSON"),
    ],
)
def test_a_line_that_is_none_says_where(data: bytes, message: str) -> None:
    with pytest.raises(LineInvalid, match=message):
        decode_line(data)


def test_continuous_lines_pass_and_a_gap_does_not() -> None:
    lines = verified_task().lines
    assert list(check_lineage(lines, first=0)) == lines
    assert list(check_lineage(lines[3:])) == lines[3:]
    for broken in (lines[1:], lines[:3] + lines[4:], [*lines[:3], lines[2]], lines[::-1]):
        with pytest.raises(OrdinalGap):
            list(check_lineage(broken, first=0))


def test_a_segment_is_read_up_to_the_first_damage() -> None:
    good = b'{"ordinal": 4}\n\n{"ordinal": 5}\n'
    assert [line.ordinal for line in split_segment(good)] == [4, 5]
    for damage in (b'{"ordinal": 6', b"not json\n", b'{"ordinal": true}\n', b'{"ordinal": -1}\n', b"[6]\n", b"\xff\n"):
        assert [line.ordinal for line in split_segment(good + damage + b'\n{"ordinal": 7}\n')] == [4, 5]
