"""The object store's interface.

ObjectStore    named immutable-ish blobs       FilesystemStore, S3Store, patchyard.testing.store.MemoryStore
OpenStore      the same, with its life cycle   what `open_store` returns
"""

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Body = bytes | Path | AsyncIterable[bytes]
"""Content of an object: bytes, a file that is read in pieces, or pieces as they come. Only bytes are held in memory whole."""


@dataclass(frozen=True)
class ObjectInfo:
    """An object in a listing."""

    key: str
    size: int
    """Bytes."""
    modified_at: int
    """Milliseconds since the epoch."""


@dataclass(frozen=True)
class ObjectPage:
    """A page of a listing, in key order."""

    objects: tuple[ObjectInfo, ...]
    next_after: str | None
    """Pass it as `after` to get the next page; None: this was the last."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the page."""
        return tuple(item.key for item in self.objects)


@dataclass(frozen=True)
class ObjectSlice:
    """A part of an object."""

    data: bytes
    start: int
    """Offset of the first byte of `data` in the object."""
    size: int
    """Length of the whole object in bytes."""


class ObjectStore(Protocol):
    """Blobs under `/`-separated keys; a write is seen whole or not at all. Every method raises StoreError."""

    async def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """Write an object durably. `if_absent`: of several writers exactly one wins, the others get ObjectExists."""
        ...

    async def get(self, key: str) -> bytes:
        """The whole object. ObjectMissing."""
        ...

    async def get_range(self, key: str, start: int = 0, length: int | None = None, *, suffix: int | None = None) -> ObjectSlice:
        """`length` bytes from `start`, or the last `suffix` bytes; fewer or none where the object ends. ObjectMissing."""
        ...

    async def list(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> ObjectPage:
        """Objects whose key starts with `prefix` and is greater than `after`, in byte order of the key."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; those that do not exist are no error."""
        ...


class OpenStore(ObjectStore, Protocol):
    """An ObjectStore with its life cycle."""

    async def check(self) -> None:
        """Write, read and remove a small object. StoreMisconfigured or StoreUnavailable with the remedy."""
        ...

    async def close(self) -> None:
        """Give threads and connections back. Twice is harmless."""
        ...


async def stream_object(store: ObjectStore, key: str, *, start: int = 0, chunk_size: int = 1 << 20) -> AsyncIterator[bytes]:
    """The object from offset `start` in pieces of `chunk_size` bytes. ObjectMissing."""
    position = start
    while True:
        piece = await store.get_range(key, position, chunk_size)
        if piece.data:
            yield piece.data
        position += len(piece.data)
        if not piece.data or position >= piece.size:
            return


async def list_all(store: ObjectStore, prefix: str, *, page_size: int = 1000) -> AsyncIterator[ObjectInfo]:
    """Every object below `prefix`, page by page."""
    after: str | None = None
    while True:
        page = await store.list(prefix, after=after, limit=page_size)
        for item in page.objects:
            yield item
        if page.next_after is None:
            return
        after = page.next_after
