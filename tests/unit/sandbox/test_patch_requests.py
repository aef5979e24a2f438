"""Requests of the apply_patch program on the worker's side: whose they are, how they end, what is no request."""

import asyncio
import struct
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchyard.adapters.sandbox._frames import Frame, FromBox, ProtocolError, ToBox, u32
from patchyard.adapters.sandbox._patches import MAX_PATCH, MAX_TEXT, PatchRequests, decode_call, encode_reply
from patchyard.agent.ports import PatchCall, PatchReply
from tests.waiting import WAIT_S


def wire(cwd: bytes, patch: bytes) -> bytes:
    return struct.pack(">II", len(cwd), len(patch)) + cwd + patch


def frame(ident: int, kind: bytes, payload: bytes = b"") -> Frame:
    return Frame(FromBox.APPLY, ident, kind + payload)


@given(st.binary(max_size=200))
def test_a_request_keeps_its_bytes(patch: bytes) -> None:
    assert decode_call(wire(b"/work\xff", patch)) == PatchCall("/work\udcff", patch)


@given(st.binary(max_size=40))
def test_no_bytes_are_an_error(data: bytes) -> None:
    call = decode_call(data)
    assert call is None or call.cwd.startswith("/")


@pytest.mark.parametrize(
    "data", [b"", wire(b"/", b"abc")[:-1], wire(b"/", b"abc") + b"d", wire(b"relative", b""), wire(b"/a\0b", b""), b"\xff" * 50]
)
def test_what_is_cut_off_or_has_no_folder_is_no_request(data: bytes) -> None:
    assert decode_call(data) is None


def test_long_texts_of_an_answer_are_cut() -> None:
    encoded = encode_reply(PatchReply(3, "a" * (MAX_TEXT + 1), "ü"))
    assert struct.unpack_from(">BI", encoded) == (3, MAX_TEXT)
    assert encoded.endswith(b"a" + "ü".encode())


class Sent:
    """What went to the box."""

    def __init__(self) -> None:
        self.answers: dict[int, bytes] = {}
        self.news = asyncio.Event()

    def __call__(self, kind: ToBox, ident: int, payload: bytes) -> None:
        assert kind is ToBox.ANSWER
        self.answers[ident] = payload
        self.news.set()


def with_requests(scenario: Callable[[PatchRequests, Sent, list[PatchCall]], Awaitable[None]], *, hangs: bool = False) -> None:
    async def main() -> None:
        calls: list[PatchCall] = []

        async def handler(call: PatchCall) -> PatchReply:
            calls.append(call)
            if hangs:
                await asyncio.Event().wait()
            return PatchReply(0, "done")

        sent = Sent()
        requests = PatchRequests(sent, {7: handler}.get)
        async with asyncio.timeout(WAIT_S):
            await scenario(requests, sent, calls)

    asyncio.run(main())


def test_pieces_of_two_requests_are_kept_apart_and_answered_by_id() -> None:
    async def scenario(requests: PatchRequests, sent: Sent, calls: list[PatchCall]) -> None:
        data = wire(b"/a", b"patch")
        for ident, command in ((1, 7), (2, 8)):
            requests.on_frame(frame(ident, b"b", u32(command)))
        for byte in data:
            for ident in (1, 2):
                requests.on_frame(frame(ident, b"d", bytes([byte])))
        for ident in (1, 2):
            requests.on_frame(frame(ident, b"w"))
        while len(sent.answers) < 2:
            sent.news.clear()
            await sent.news.wait()
        assert calls == [PatchCall("/a", b"patch")]
        assert sent.answers[1] == encode_reply(PatchReply(0, "done"))
        assert b"can't be used in this command" in sent.answers[2]

    with_requests(scenario)


@pytest.mark.parametrize("end", ["gone", "box"])
def test_who_is_gone_gets_no_answer(end: str) -> None:
    async def scenario(requests: PatchRequests, sent: Sent, calls: list[PatchCall]) -> None:
        requests.on_frame(frame(1, b"b", u32(7)))
        requests.on_frame(frame(1, b"d", wire(b"/", b"")))
        requests.on_frame(frame(1, b"w"))
        while not calls:
            await asyncio.sleep(0)
        (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "box-patch"]
        requests.on_frame(frame(1, b"g")) if end == "gone" else requests.close()
        await asyncio.wait([task])
        assert (task.cancelled(), sent.answers) == (True, {})
        requests.on_frame(frame(1, b"g"))

    with_requests(scenario, hangs=True)


@pytest.mark.parametrize(
    "frames",
    [
        [frame(1, b"d", b"x")],
        [frame(1, b"w")],
        [frame(1, b"?")],
        [frame(1, b"b", u32(7)), frame(1, b"b", u32(7))],
        [frame(1, b"b", u32(7)), frame(1, b"d", bytes(MAX_PATCH)), frame(1, b"d", bytes(8193))],
        [frame(number, b"b", u32(7)) for number in range(1, 18)],
    ],
)
def test_what_boxd_never_sends_is_an_error(frames: list[Frame]) -> None:
    async def scenario(requests: PatchRequests, sent: Sent, calls: list[PatchCall]) -> None:
        for one in frames[:-1]:
            requests.on_frame(one)
        with pytest.raises(ProtocolError):
            requests.on_frame(frames[-1])

    with_requests(scenario)
