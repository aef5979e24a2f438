"""Objects as files below one folder. Good for one machine, or several on one shared file system that has hard links."""

import asyncio
import builtins
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from ._files import TEMP_FOLDER, TempFile, clean_leftovers, make_folders, read_slice, sync_folder, translate, walk
from .bodies import pieces
from .errors import ObjectExists, ObjectMissing, StoreMisconfigured
from .keys import check_key, check_prefix
from .ports import Body, ObjectInfo, ObjectPage, ObjectSlice

_THREADS = 8
"""Disk queues gain little from more, and each costs memory."""
_PIECE = 1 << 20
"""Bytes of a streamed body that are in memory at once."""

_T = TypeVar("_T")


class FilesystemStore:
    """ObjectStore in a folder: written to a temporary file, synced, then renamed (or linked, for `if_absent`) into place."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._executor = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="store")
        self._prepared = False

    @property
    def root(self) -> Path:
        """The folder."""
        return self._root

    async def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """See ObjectStore.put."""
        check_key(key)
        if isinstance(data, bytes):
            await self._run(lambda: self._write_whole(key, data, if_absent=if_absent))
            return
        temp = await self._run(self._new_temp)
        try:
            async for piece in pieces(data, _PIECE):
                await self._run(partial(self._append, temp, piece))
            await self._run(lambda: self._publish(temp, key, if_absent=if_absent))
        finally:
            # Not awaited: a cancelled upload must leave nothing behind, and the executor may be busy.
            temp.discard()

    async def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        path = self._path(key)

        def read() -> bytes:
            with self._errors(key):
                return path.read_bytes()

        return await self._run(read)

    async def get_range(self, key: str, start: int = 0, length: int | None = None, *, suffix: int | None = None) -> ObjectSlice:
        """See ObjectStore.get_range."""
        path = self._path(key)

        def read() -> ObjectSlice:
            with self._errors(key):
                return read_slice(path, start=start, length=length, suffix=suffix)

        return await self._run(read)

    async def list(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> ObjectPage:
        """See ObjectStore.list."""
        check_prefix(prefix)

        def read() -> ObjectPage:
            with self._errors(prefix):
                found: builtins.list[ObjectInfo] = []
                for item in walk(self._root, prefix, after):
                    if len(found) == limit:
                        return ObjectPage(tuple(found), found[-1].key if found else after)
                    found.append(item)
                return ObjectPage(tuple(found), None)

        return await self._run(read)

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore.delete."""
        paths = [self._path(key) for key in keys]
        await self._run(lambda: self._remove(paths))

    async def check(self) -> None:
        """See OpenStore.check. Also tells when the file system has no hard links."""
        key = f"patchyard-check-{secrets.token_hex(8)}"
        await self.put(key, b"ok", if_absent=True)
        try:
            await self.get(key)
        finally:
            await self.delete([key])

    async def close(self) -> None:
        """See OpenStore.close."""
        await asyncio.to_thread(self._executor.shutdown)

    # --- in the executor ------------------------------------------------------------------------

    async def _run(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise ObjectMissing(key) from None
        except OSError as error:
            raise translate(error, self._root) from error

    @contextmanager
    def _write_errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except FileExistsError:
            raise ObjectExists(key) from None
        except OSError as error:
            if key and isinstance(error, IsADirectoryError | NotADirectoryError):
                raise StoreMisconfigured(f"{key!r} cannot be a file and a folder below {self._root}.") from None
            raise translate(error, self._root) from error

    def _new_temp(self) -> TempFile:
        with self._write_errors(""):
            if not self._prepared:
                make_folders(self._root / TEMP_FOLDER)
                clean_leftovers(self._root / TEMP_FOLDER)
                self._prepared = True
            try:
                return TempFile(self._root / TEMP_FOLDER)
            except FileNotFoundError:  # a file system was mounted or unmounted there meanwhile
                make_folders(self._root / TEMP_FOLDER)
                return TempFile(self._root / TEMP_FOLDER)

    def _append(self, temp: TempFile, chunk: bytes) -> None:
        with self._write_errors(""):
            temp.write(chunk)

    def _write_whole(self, key: str, data: bytes, *, if_absent: bool) -> None:
        if if_absent and (self._root / key).is_file():
            raise ObjectExists(key)
        temp = self._new_temp()
        try:
            self._append(temp, data)
            self._publish(temp, key, if_absent=if_absent)
        finally:
            temp.discard()

    def _publish(self, temp: TempFile, key: str, *, if_absent: bool) -> None:
        target = self._root / key
        with self._write_errors(key):
            temp.sync()
            make_folders(target.parent)
            if if_absent:
                # link() fails when the name exists: of several writers exactly one wins, on every POSIX file system.
                os.link(temp.path, target)
            else:
                os.replace(temp.path, target)
            sync_folder(target.parent)

    def _remove(self, paths: Sequence[Path]) -> None:
        folders: set[Path] = set()
        with self._write_errors(""):
            for path in paths:
                with suppress(FileNotFoundError, NotADirectoryError):
                    path.unlink()
                    folders.add(path.parent)
            for folder in folders:
                with suppress(FileNotFoundError):
                    sync_folder(folder)
