import pytest

from patchyard.agent.tools.output import BUFFER_BYTES, OutputBuffer, plain, truncate


def test_output_within_the_limit_is_whole():
    buffer = OutputBuffer()
    buffer.add(b"a" * 10)
    buffer.add(b"b" * 10)
    assert buffer.take().shaped(100) == "a" * 10 + "b" * 10
    assert buffer.take().total == 0


@pytest.mark.parametrize("chunk", [1000, 65_536, 4 * BUFFER_BYTES])
def test_of_huge_output_the_first_and_the_last_part_are_kept(chunk):
    data = b"start" + b"x" * (3 * BUFFER_BYTES) + b"end"
    buffer = OutputBuffer()
    for i in range(0, len(data), chunk):
        buffer.add(data[i : i + chunk])
    captured = buffer.take()
    assert captured.total == len(data)
    assert captured.head.startswith(b"start")
    assert captured.tail.endswith(b"end")
    assert len(captured.head) + len(captured.tail) <= BUFFER_BYTES
    text = captured.shaped(1000)
    assert text.startswith("start")
    assert text.endswith("end")
    assert "left out" in text
    assert captured.original_tokens == -(-len(data) // 4)


def test_a_budget_of_nothing_leaves_the_count():
    assert truncate("hello\nworld\n", 0) == "\n[… 3 tokens (2 lines) left out of 3 lines …]\n"


def test_characters_are_never_cut():
    text = truncate("é" * 100, 10)
    assert "\ufffd" not in text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07x", "x"),
        (b"\x1b]8;;http://x\x1b\\link", "link"),
        (b"a\x00b\x07c\x08", "abc"),
        (b"10%\r20%\r\n", "10%\n20%\n"),
        (b"\x1b(Bx\x1b=y", "xy"),
        (b"tab\tok\n", "tab\tok\n"),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_control_sequences_go(data, text):
    assert plain(data) == text
