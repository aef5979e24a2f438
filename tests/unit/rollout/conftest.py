import pytest

from patchyard.adapters.store import StoredSegments
from patchyard.testing.store import MemoryStore


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def segments(memory: MemoryStore) -> StoredSegments:
    return StoredSegments(memory)
