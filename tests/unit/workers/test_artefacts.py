import asyncio
from pathlib import Path

import pytest

from patchyard.adapters.workspace import BrokenArchive
from patchyard.testing.store import MemoryStore
from workers.running.artefacts import Artefacts, Snapshots


def test_artefacts_belong_to_a_tenant(tmp_path: Path) -> None:
    async def run() -> None:
        artefacts = Artefacts(MemoryStore())
        artefact_id = await artefacts.put("default", b"patch")
        assert await artefacts.get("default", artefact_id) == b"patch"
        await artefacts.fetch("default", artefact_id, tmp_path / "file")
        assert (tmp_path / "file").read_bytes() == b"patch"
        for read in (artefacts.get("other", artefact_id), artefacts.fetch("other", artefact_id, tmp_path / "x")):
            with pytest.raises(BrokenArchive, match="Upload it again"):
                await read

    asyncio.run(run())


def test_the_newest_snapshot_wins_and_a_fenced_worker_never_does() -> None:
    async def run() -> None:
        store = MemoryStore()
        snapshots = Snapshots(store)
        assert await snapshots.latest("default", "t") is None
        await snapshots.put("default", "t", fence=1, number=1, data=b"one")
        await snapshots.put("default", "t", fence=1, number=2, data=b"two")
        assert await snapshots.latest("default", "t") == b"two"
        assert len((await store.list("default/snapshots/t/")).keys) == 1
        await snapshots.put("default", "t", fence=10, number=1, data=b"successor")
        await snapshots.put("default", "t", fence=9, number=99, data=b"zombie")
        assert await snapshots.latest("default", "t") == b"successor"
        assert await snapshots.latest("other", "t") is None

    asyncio.run(run())
