"""What turns produce and use besides their rollout: patches, logs, uploads, and snapshots of work trees."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from patchyard.adapters.store import ObjectMissing, ObjectStore, StoreError, list_all, stream_object
from patchyard.adapters.workspace import BrokenArchive
from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.ids import new_id

log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_S = 60.0
"""How long a turn waits for a store that is away before its work is given up."""
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 8.0


async def patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Do it, again and again while the store is away. StoreError: it stayed away, or refuses for a reason of its own."""
    until = time.monotonic() + PATIENCE_S
    pause = _FIRST_PAUSE_S
    while True:
        try:
            return await work()
        except StoreError as error:
            away = error.info.code is ErrorCode.STORE_UNAVAILABLE and error.info.retryable
            if not away or time.monotonic() + pause > until:
                raise
            if pause == _FIRST_PAUSE_S:
                log.warning("the turn waits for the store: %s", error)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


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
