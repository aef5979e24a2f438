"""What only a folder does."""

import asyncio
import errno
import fcntl
import os
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from patchyard.adapters.store import (
    FilesystemStore,
    StoreDiskFull,
    StoreError,
    StoreMisconfigured,
    StoreUnavailable,
    _files,
    open_store,
)
from tests.waiting import WAIT_S

ROOT = Path(__file__).parents[3]


def temps(folder: Path) -> list[str]:
    return [entry.name for entry in os.scandir(folder / ".tmp")]


def test_files_lie_under_their_keys(tmp_path: Path) -> None:
    async def run() -> None:
        store = FilesystemStore(tmp_path / "a" / "objects")
        await store.put("default/artefacts/x", b"content", if_absent=True)
        await store.put("default/artefacts/x", b"content 2")
        await store.close()
        await store.close()

    asyncio.run(run())
    path = tmp_path / "a" / "objects" / "default" / "artefacts" / "x"
    assert path.read_bytes() == b"content 2"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "a" / "objects").stat().st_mode) == 0o700
    assert path.stat().st_nlink == 1
    assert temps(tmp_path / "a" / "objects") == []


@pytest.mark.parametrize(
    ("code", "kind", "remedy"),
    [
        (errno.ENOSPC, StoreDiskFull, "Free disk space"),
        (errno.EDQUOT, StoreDiskFull, "Free disk space"),
        (errno.EROFS, StoreMisconfigured, "writable"),
        (errno.EACCES, StoreMisconfigured, "writable"),
        (errno.EOPNOTSUPP, StoreMisconfigured, "use S3"),
        (errno.EIO, StoreUnavailable, "check the disk"),
    ],
)
@pytest.mark.parametrize("step", ["write", "sync"])
def test_a_write_that_fails_says_what_to_do_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[StoreError], remedy: str, step: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(_files.TempFile, step, fail)

    async def stream() -> AsyncIterator[bytes]:
        yield b"piece"

    async def run() -> None:
        store = FilesystemStore(tmp_path)
        for body in (b"bytes", stream()):
            with pytest.raises(kind, match=remedy) as caught:
                await store.put("a/b", body)
            assert caught.value.retryable is (kind is not StoreMisconfigured)
        assert (await store.list("")).keys == ()
        await store.close()

    asyncio.run(run())
    assert temps(tmp_path) == []


def test_a_full_disk_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        store = FilesystemStore(tmp_path)
        await store.put("a", b"old")
        with monkeypatch.context() as patch:
            patch.setattr(_files.TempFile, "sync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
            with pytest.raises(StoreDiskFull):
                await store.put("a", b"new")
        assert await store.get("a") == b"old"
        await store.put("a", b"new")
        assert await store.get("a") == b"new"
        await store.close()

    asyncio.run(run())


def test_a_folder_that_was_emptied_under_a_running_store_is_used_again(tmp_path: Path) -> None:
    """As after an unmount: what the store had made there is gone."""

    async def run() -> None:
        store = FilesystemStore(tmp_path / "objects")
        await store.put("default/a", b"1")
        (tmp_path / "objects").rename(tmp_path / "elsewhere")
        (tmp_path / "objects").mkdir()
        await store.put("default/b", b"2")
        assert await store.get("default/b") == b"2"
        await store.close()

    asyncio.run(run())


def test_a_root_that_is_no_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    async def run() -> None:
        store = FilesystemStore(tmp_path / "file")
        with pytest.raises(StoreMisconfigured, match="PATCHYARD_STORE_URL"):
            await store.check()
        await store.close()

    asyncio.run(run())


def test_leftovers_of_dead_writers_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    folder = tmp_path / ".tmp"
    folder.mkdir()
    long_ago = time.time() - 1000
    for name in ("dead", "alive", "young"):
        (folder / name).write_bytes(b"x")
        if name != "young":
            os.utime(folder / name, (long_ago, long_ago))
    living = os.open(folder / "alive", os.O_WRONLY)
    fcntl.flock(living, fcntl.LOCK_EX)

    async def run() -> None:
        store = FilesystemStore(tmp_path)
        await store.put("a", b"x")
        assert (await store.list("")).keys == ("a",)
        await store.close()

    asyncio.run(run())
    os.close(living)
    assert sorted(temps(tmp_path)) == ["alive", "young"]


_ENDLESS = """
import asyncio, sys
from pathlib import Path
from patchyard.adapters.store import FilesystemStore

async def pieces():
    yield b"x" * (1 << 20)
    yield b"x" * (1 << 20)
    print("writing", flush=True)
    await asyncio.Event().wait()

asyncio.run(FilesystemStore(Path(sys.argv[1])).put("big", pieces()))
"""


def test_a_killed_writer_leaves_no_object_and_its_rest_is_cleaned(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", _ENDLESS, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    (name,) = temps(tmp_path)
    long_ago = time.time() - 1000
    os.utime(tmp_path / ".tmp" / name, (long_ago, long_ago))

    async def open_again() -> None:
        store = FilesystemStore(tmp_path)
        assert "big" not in (await store.list("")).keys
        await store.put("small", b"x")
        await store.close()

    asyncio.run(open_again())
    assert temps(tmp_path) == [name]
    process.kill()
    process.wait()
    process.stdout.close()
    asyncio.run(open_again())
    assert temps(tmp_path) == []


def test_a_cancelled_upload_leaves_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        store = FilesystemStore(tmp_path)
        started = asyncio.Event()

        async def stuck() -> AsyncIterator[bytes]:
            yield b"x" * (2 << 20)
            started.set()
            await asyncio.Event().wait()

        upload = asyncio.create_task(store.put("a", stuck()))
        await asyncio.wait_for(started.wait(), WAIT_S)
        upload.cancel()
        with pytest.raises(asyncio.CancelledError):
            await upload
        assert (await store.list("")).keys == ()
        await store.close()

    asyncio.run(run())
    assert temps(tmp_path) == []


def test_a_folder_named_like_an_object_is_told(tmp_path: Path) -> None:
    async def run() -> None:
        store = FilesystemStore(tmp_path)
        await store.put("a/b", b"x")
        for key in ("a", "a/b/c"):
            with pytest.raises(StoreMisconfigured, match="file and a folder"):
                await store.put(key, b"x")
        await store.close()

    asyncio.run(run())


@pytest.mark.parametrize("url", ["", "objects", "http://x", "s3://", "file://host/folder", "file:relative", "ftp://a/b"])
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(StoreMisconfigured, match="PATCHYARD_STORE_URL"):
        open_store(url)


def test_a_url_names_its_folder(tmp_path: Path) -> None:
    for url in (f"file://{tmp_path}/with%20space", f"file://localhost{tmp_path}/with%20space", f"{tmp_path}/with space"):
        store = open_store(url)
        assert isinstance(store, FilesystemStore)
        assert store.root == tmp_path / "with space"


def test_a_folder_store_brings_no_s3_library() -> None:
    code = (
        "import sys; import patchyard.adapters.store as s; s.open_store('/x'); print({'boto3', 'botocore'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
