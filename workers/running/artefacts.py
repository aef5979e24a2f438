"""What turns produce and use besides their rollout: patches, logs, uploads, and snapshots of work trees."""

import asyncio
from pathlib import Path

from patchyard.adapters.store import ObjectMissing, ObjectStore, list_all, stream_object
from patchyard.adapters.workspace import BrokenArchive
from patchyard.protocol.ids import new_id


class Artefacts:
    """Blobs of a tenant, under ids, as the API serves them."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def put(self, tenant_id: str, data: bytes) -> str:
        """Store a blob; returns its id. StoreError."""
        artefact_id = new_id()
        await self._store.put(f"{tenant_id}/artefacts/{artefact_id}", data)
        return artefact_id

    async def get(self, tenant_id: str, artefact_id: str) -> bytes:
        """A blob. BrokenArchive when it is not there; StoreError."""
        try:
            return await self._store.get(f"{tenant_id}/artefacts/{artefact_id}")
        except ObjectMissing as error:
            raise _gone(artefact_id) from error

    async def fetch(self, tenant_id: str, artefact_id: str, target: Path) -> None:
        """Write a blob to a file, piece by piece. BrokenArchive when it is not there; StoreError; OSError of the disk."""
        with await asyncio.to_thread(target.open, "wb") as file:
            try:
                async for piece in stream_object(self._store, f"{tenant_id}/artefacts/{artefact_id}"):
                    await asyncio.to_thread(file.write, piece)
            except ObjectMissing as error:
                raise _gone(artefact_id) from error


class Snapshots:
    """The newest known difference of a thread's work tree to its base, so that another machine can go on with it.

    Names sort by fencing token and number: what a fenced-off worker still writes is never the newest.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def put(self, tenant_id: str, thread_id: str, *, fence: int, number: int, data: bytes) -> None:
        """Store a snapshot and drop the older ones. StoreError."""
        prefix = self._prefix(tenant_id, thread_id)
        key = f"{prefix}{fence:020}-{number:010}"
        await self._store.put(key, data)
        await self._store.delete([item.key async for item in list_all(self._store, prefix) if item.key < key])

    async def latest(self, tenant_id: str, thread_id: str) -> bytes | None:
        """The newest snapshot; None when there is none. StoreError."""
        keys = [item.key async for item in list_all(self._store, self._prefix(tenant_id, thread_id))]
        for key in reversed(keys):
            try:
                return await self._store.get(key)
            except ObjectMissing:
                continue  # a newer one has taken its place meanwhile, and was listed before it
        return None

    def _prefix(self, tenant_id: str, thread_id: str) -> str:
        return f"{tenant_id}/snapshots/{thread_id}/"


def _gone(artefact_id: str) -> BrokenArchive:
    return BrokenArchive(f"There is no artefact {artefact_id}. Upload it again and use the new id.")
