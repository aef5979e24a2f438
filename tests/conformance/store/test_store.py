"""What every object store does, whether a folder, S3 or memory."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from patchyard.adapters.store import InvalidKey, ObjectExists, ObjectMissing, OpenStore, list_all, stream_object

OpenAnother = Callable[[], OpenStore]
BIG = bytes(range(256)) * 4096 * 19 + b"end"
"""19 MiB and three bytes: three parts of a multipart upload."""


def using(open_another: OpenAnother, work: Callable[[OpenStore], Awaitable[None]]) -> None:
    async def run() -> None:
        store = open_another()
        try:
            await work(store)
        finally:
            await store.close()

    asyncio.run(run())


def test_an_object_reads_back_as_it_was_written(open_another: OpenAnother) -> None:
    async def work(store: OpenStore) -> None:
        await store.put("default/artefacts/a", b"\x00first")
        await store.put("default/artefacts/empty", b"")
        await store.put("default/artefacts/a", b"second")
        assert await store.get("default/artefacts/a") == b"second"
        assert await store.get("default/artefacts/empty") == b""
        await store.check()

    using(open_another, work)


def test_what_is_not_there_is_missing(open_another: OpenAnother) -> None:
    async def work(store: OpenStore) -> None:
        await store.put("a/b", b"x")
        for key in ("a/c", "a/b/c", "z"):
            with pytest.raises(ObjectMissing):
                await store.get(key)
            with pytest.raises(ObjectMissing):
                await store.get_range(key, suffix=3)
        with pytest.raises(ObjectMissing):
            await store.get_range("nothing", 0, 0)

    using(open_another, work)


def test_if_absent_writes_only_once(open_another: OpenAnother) -> None:
    async def work(store: OpenStore) -> None:
        await store.put("a/key", b"mine", if_absent=True)
        with pytest.raises(ObjectExists):
            await store.put("a/key", b"theirs", if_absent=True)
        assert await store.get("a/key") == b"mine"

    using(open_another, work)


def test_a_race_of_many_writers_has_exactly_one_winner(open_another: OpenAnother) -> None:
    async def work(store: OpenStore) -> None:
        other = open_another()

        async def attempt(number: int) -> int | None:
            try:
                await (store, other)[number % 2].put("race/key", str(number).encode(), if_absent=True)
            except ObjectExists:
                return None
            return number

        winners = [won for won in await asyncio.gather(*map(attempt, range(24))) if won is not None]
        assert len(winners) == 1
        assert await store.get("race/key") == str(winners[0]).encode()
        await other.close()

    using(open_another, work)


@pytest.mark.parametrize(
    ("start", "length", "suffix", "expected", "at"),
    [
        (0, 4, None, b"0123", 0),
        (3, 4, None, b"3456", 3),
        (8, 100, None, b"89", 8),
        (8, None, None, b"89", 8),
        (10, 5, None, b"", 10),
        (99, 5, None, b"", 10),
        (4, 0, None, b"", 4),
        (0, None, 3, b"789", 7),
        (0, None, 100, b"0123456789", 0),
        (0, None, 0, b"", 10),
    ],
)
def test_ranges(
    open_another: OpenAnother, start: int, length: int | None, suffix: int | None, expected: bytes, at: int
) -> None:
    async def work(store: OpenStore) -> None:
        await store.put("a/digits", b"0123456789")
        piece = await store.get_range("a/digits", start, length, suffix=suffix)
        assert (piece.data, piece.start, piece.size) == (expected, at, 10)

    using(open_another, work)


def test_the_end_of_an_empty_object_is_empty(open_another: OpenAnother) -> None:
    async def work(store: OpenStore) -> None:
        await store.put("a/empty", b"")
        assert (await store.get_range("a/empty", suffix=10)).data == b""
        assert [piece async for piece in stream_object(store, "a/empty")] == []

    using(open_another, work)


def test_listing_is_in_key_order_over_pages(open_another: OpenAnother) -> None:
    keys = ["t/a-1/x", "t/a.b", "t/a/x", "t/a/y", "t/a0", "t/b/c/d/e", "t2/a"]

    async def work(store: OpenStore) -> None:
        for key in reversed(keys):
            await store.put(key, key.encode())
        for size in (1, 2, 3, 100):
            found = [item async for item in list_all(store, "t/", page_size=size)]
            assert [item.key for item in found] == sorted(key for key in keys if key.startswith("t/"))
            assert all(item.size == len(item.key) and item.modified_at > 1_600_000_000_000 for item in found)
        assert [item.key async for item in list_all(store, "")] == sorted(keys)
        assert (await store.list("t/a")).keys == ("t/a-1/x", "t/a.b", "t/a/x", "t/a/y", "t/a0")
        assert (await store.list("t/a/")).keys == ("t/a/x", "t/a/y")
        assert (await store.list("t/", after="t/a/x")).keys == ("t/a/y", "t/a0", "t/b/c/d/e")
        assert (await store.list("t/", after="t/a/")).keys == ("t/a/x", "t/a/y", "t/a0", "t/b/c/d/e")
        assert (await store.list("nothing/")).keys == ()
        page = await store.list("t/", limit=2)
        assert page.next_after == page.keys[-1]
        assert (await store.list("t/b", limit=1)).next_after is None

    using(open_another, work)


def test_deleting_removes_and_forgives(open_another: OpenAnother) -> None:
    async def work(store: OpenStore) -> None:
        for number in range(5):
            await store.put(f"d/{number}", b"x")
        await store.delete(["d/0", "d/3", "d/none", "none/at/all"])
        await store.delete([])
        assert (await store.list("d/")).keys == ("d/1", "d/2", "d/4")

    using(open_another, work)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        "../a",
        "a/../b",
        "a/./b",
        ".hidden",
        "a/.tmp/b",
        "a\0b",
        "a\nb",
        "a\\b",
        "ä",
        "a b",
        "x" * 201,
        "a/" * 600,
    ],
)
def test_keys_that_could_escape_or_confuse_are_refused(open_another: OpenAnother, key: str) -> None:
    async def work(store: OpenStore) -> None:
        for call in (store.put(key, b""), store.get(key), store.get_range(key, 0, 1), store.delete([key])):
            with pytest.raises(InvalidKey):
                await call

    using(open_another, work)


def test_a_big_file_and_a_stream_arrive_whole(open_another: OpenAnother, tmp_path: Path) -> None:
    source = tmp_path / "source.bin"
    source.write_bytes(BIG)

    async def stream() -> AsyncIterator[bytes]:
        for start in range(0, len(BIG), 777_777):
            yield BIG[start : start + 777_777]

    async def work(store: OpenStore) -> None:
        await store.put("big/file", source, if_absent=True)
        await store.put("big/stream", stream())
        await store.put("big/short", source.parent / "source.bin", if_absent=True)
        with pytest.raises(ObjectExists):
            await store.put("big/file", source, if_absent=True)
        assert await store.get("big/file") == BIG
        assert b"".join([piece async for piece in stream_object(store, "big/stream", chunk_size=5_000_000)]) == BIG
        assert [piece async for piece in stream_object(store, "big/stream", start=len(BIG) - 3)] == [b"end"]

    using(open_another, work)


def test_an_upload_that_breaks_off_leaves_nothing(open_another: OpenAnother) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield BIG
        raise ConnectionResetError("the client went away")

    async def work(store: OpenStore) -> None:
        with pytest.raises(ConnectionResetError):
            await store.put("big/broken", broken())
        assert (await store.list("big/")).keys == ()
        with pytest.raises(ObjectMissing):
            await store.get("big/broken")

    using(open_another, work)


def test_what_one_process_wrote_another_reads(open_another: OpenAnother) -> None:
    async def work(store: OpenStore) -> None:
        await store.put("shared/key", b"value")
        other = open_another()
        assert await other.get("shared/key") == b"value"
        await other.close()

    using(open_another, work)
