"""The codec of boxd's frames and of the engine's stream around them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchyard.adapters.sandbox._frames import (
    EngineDemux,
    Frame,
    FrameDecoder,
    FromBox,
    ProtocolError,
    ToBox,
    encode,
    environment,
    read_u32,
    spawn_payload,
    u32,
)

FRAMES = st.lists(st.builds(Frame, st.sampled_from(FromBox), st.integers(0, 2**32 - 1), st.binary(max_size=300)), max_size=8)


def wire(frame: Frame) -> bytes:
    return u32(len(frame.payload) + 5) + frame.type.encode() + u32(frame.id) + frame.payload


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    parts = []
    for size in sizes:
        parts.append(data[:size])
        data = data[size:]
    return [*parts, data]


@given(FRAMES, st.lists(st.integers(0, 50), max_size=20))
def test_frames_survive_any_cut_of_the_stream(frames: list[Frame], sizes: list[int]) -> None:
    decoder = FrameDecoder()
    got = [frame for part in cut(b"".join(map(wire, frames)), sizes) for frame in decoder.feed(part)]
    assert got == frames


@given(
    st.lists(st.tuples(st.sampled_from((1, 2)), st.binary(max_size=100)), max_size=8), st.lists(st.integers(0, 30), max_size=20)
)
def test_the_engines_headers_come_off_at_any_cut(parts: list[tuple[int, bytes]], sizes: list[int]) -> None:
    raw = b"".join(bytes([stream, 0, 0, 0]) + u32(len(data)) + data for stream, data in parts)
    demux = EngineDemux()
    assert b"".join(map(demux.feed, cut(raw, sizes))) == b"".join(data for stream, data in parts if stream == 1)
    assert bytes(demux.stderr) == b"".join(data for stream, data in parts if stream == 2)


@pytest.mark.parametrize(
    "garbage", [u32(4) + b"O" + u32(1), u32(1 << 30) + b"O" + u32(1), u32(5) + b"?" + u32(1), b"HTTP/1.1 200 OK"]
)
def test_what_is_no_frame_is_an_error(garbage: bytes) -> None:
    with pytest.raises(ProtocolError):
        FrameDecoder().feed(garbage)


def test_what_is_no_engine_stream_is_an_error() -> None:
    with pytest.raises(ProtocolError):
        EngineDemux().feed(b"plain text")


def test_frames_to_the_box() -> None:
    assert encode(ToBox.SIGNAL, 7, b"\x09") == b"\0\0\0\x06K\0\0\0\x07\x09"
    assert read_u32(encode(ToBox.PING, 1)) == 5


def test_spawn_records_keep_any_bytes_but_nul() -> None:
    assert spawn_payload([("a", "é"), ("a", "\udcff"), ("c", "")]) == b"a\xc3\xa9\0a\xff\0c\0"
    with pytest.raises(ValueError, match="NUL"):
        spawn_payload([("a", "x\0c/etc")])
    with pytest.raises(ValueError, match="bytes"):
        spawn_payload([("a", "x" * (4 << 20))])


@pytest.mark.parametrize("name", ["", "A=B"])
def test_environment_names_are_checked(name: str) -> None:
    with pytest.raises(ValueError, match="no name"):
        list(environment({name: "x"}))
