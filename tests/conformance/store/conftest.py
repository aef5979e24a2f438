from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from patchyard.adapters.store import OpenStore, open_store
from patchyard.testing.store import MemoryStore
from tests.servers_s3 import CREDENTIALS, s3_server

OpenAnother = Callable[[], OpenStore]


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.delenv("AWS_PROFILE", raising=False)
        with s3_server("conformance") as url:
            yield url


@pytest.fixture(params=["folder", "s3", "memory"])
def open_another(request: pytest.FixtureRequest, tmp_path: Path) -> OpenAnother:
    """Opens the same objects again, as another process would."""
    match request.param:
        case "folder":
            return lambda: open_store(f"file://{tmp_path}/objects")
        case "s3":
            endpoint = request.getfixturevalue("s3_url")
            return lambda: open_store(f"s3://conformance/{tmp_path.name}", endpoint_url=endpoint)
        case _:
            store = MemoryStore()
            return lambda: store
