"""The rollout's view of an object store."""

from collections.abc import Sequence

from patchyard.rollout.ports import TailPiece

from .errors import ObjectExists, ObjectMissing
from .ports import ObjectStore, list_all


class StoredSegments:
    """SegmentStore over an ObjectStore."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def create(self, key: str, data: bytes) -> bool:
        """See SegmentStore.create."""
        try:
            await self._store.put(key, data, if_absent=True)
        except ObjectExists:
            return False
        return True

    async def read(self, key: str) -> bytes | None:
        """See SegmentStore.read."""
        try:
            return await self._store.get(key)
        except ObjectMissing:
            return None

    async def read_before(self, key: str, end: int | None, length: int) -> TailPiece | None:
        """See SegmentStore.read_before."""
        try:
            if end is None:
                piece = await self._store.get_range(key, suffix=length)
            else:
                start = max(end - length, 0)
                piece = await self._store.get_range(key, start, end - start)
        except ObjectMissing:
            return None
        return TailPiece(piece.data, piece.start)

    async def list(self, prefix: str) -> Sequence[str]:
        """See SegmentStore.list."""
        return [item.key async for item in list_all(self._store, prefix)]

    async def delete(self, keys: Sequence[str]) -> None:
        """See SegmentStore.delete."""
        await self._store.delete(keys)
