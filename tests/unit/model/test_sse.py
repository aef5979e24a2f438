"""The SSE parser, fed in any pieces."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchyard.adapters.model.connections.sse import EventTooLarge, SseEvent, SseParser

STREAM = (
    b"\xef\xbb\xbf: hello\r\n\r\nevent: a\r\ndata: one\r\ndata:two\r\n\r\n"
    b'id: 7\nretry: 10\ndata\n\nevent: lonely\n\ndata: {"x": "\xc3\xa9"}\n\n'
    b"event: b\rdata:  spaced\r\rdata: unfinished\n"
)
EVENTS = [
    SseEvent(b"a", b"one\ntwo"),
    SseEvent(b"", b""),
    SseEvent(b"", '{"x": "é"}'.encode()),
    SseEvent(b"b", b" spaced"),
]


@given(st.lists(st.integers(min_value=1, max_value=len(STREAM) - 1), max_size=12))
def test_pieces_do_not_matter(cuts: list[int]) -> None:
    parser = SseParser()
    borders = [0, *sorted(cuts), len(STREAM)]
    found = [event for a, b in itertools.pairwise(borders) for event in parser.feed(STREAM[a:b])]
    assert found == EVENTS


def test_byte_by_byte() -> None:
    parser = SseParser()
    assert [event for byte in STREAM for event in parser.feed(bytes([byte]))] == EVENTS


def test_an_endless_event_is_given_up_and_endless_comments_are_not() -> None:
    parser = SseParser(max_event_bytes=1000)
    for _ in range(500):
        assert list(parser.feed(b": keep-alive\n\n")) == []
    with pytest.raises(EventTooLarge):
        list(itertools.chain.from_iterable(parser.feed(b"data: xxxxxxxxxx\n") for _ in range(200)))


def test_a_huge_line_in_small_pieces() -> None:
    parser = SseParser()
    assert list(parser.feed(b"data: ")) == []
    for _ in range(10_000):
        assert list(parser.feed(b"x" * 100)) == []
    (event,) = parser.feed(b"\n\n")
    assert len(event.data) == 1_000_000
