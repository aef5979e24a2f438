"""An object store in memory, with the manners of the real ones."""

import time
from bisect import bisect_right
from collections.abc import Sequence

from patchyard.adapters.store import (
    Body,
    ObjectExists,
    ObjectInfo,
    ObjectMissing,
    ObjectPage,
    ObjectSlice,
    StoreError,
    check_key,
    check_prefix,
)
from patchyard.adapters.store.bodies import pieces


class MemoryStore:
    """ObjectStore for tests: `objects` shows what is there, `fail` makes the next calls fail."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.calls: list[str] = []
        """`method key` of every call, in order."""
        self._modified: dict[str, int] = {}
        self._failures: list[StoreError] = []

    def fail(self, *errors: StoreError) -> None:
        """The next calls raise these, one each, before they do anything."""
        self._failures += errors

    def assert_no_failures_left(self) -> None:
        """AssertionError when a failure was set up that no call met."""
        if self._failures:
            raise AssertionError(f"{len(self._failures)} store failures were set up and not met: {self._failures}")

    async def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """See ObjectStore.put."""
        self._call("put", check_key(key))
        content = data if isinstance(data, bytes) else b"".join([piece async for piece in pieces(data, 1 << 20)])
        if if_absent and key in self.objects:
            raise ObjectExists(key)
        self.objects[key] = content
        self._modified[key] = time.time_ns() // 1_000_000

    async def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        self._call("get", check_key(key))
        return self._found(key)

    async def get_range(self, key: str, start: int = 0, length: int | None = None, *, suffix: int | None = None) -> ObjectSlice:
        """See ObjectStore.get_range."""
        self._call("get_range", check_key(key))
        content = self._found(key)
        size = len(content)
        first = max(size - suffix, 0) if suffix is not None else min(start, size)
        end = size if suffix is not None or length is None else first + length
        return ObjectSlice(content[first:end], first, size)

    async def list(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> ObjectPage:
        """See ObjectStore.list."""
        self._call("list", check_prefix(prefix))
        keys = sorted(key for key in self.objects if key.startswith(prefix))
        keys = keys if after is None else keys[bisect_right(keys, after) :]
        objects = tuple(ObjectInfo(key, len(self.objects[key]), self._modified.get(key, 0)) for key in keys[:limit])
        return ObjectPage(objects, objects[-1].key if len(keys) > limit and objects else None)

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore.delete."""
        for key in keys:
            self._call("delete", check_key(key))
            self.objects.pop(key, None)

    async def check(self) -> None:
        """See OpenStore.check."""
        self._call("check", "")

    async def close(self) -> None:
        """See OpenStore.close."""

    def _call(self, method: str, key: str) -> None:
        self.calls.append(f"{method} {key}")
        if self._failures:
            raise self._failures.pop(0)

    def _found(self, key: str) -> bytes:
        if key not in self.objects:
            raise ObjectMissing(key)
        return self.objects[key]
