from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import FLAVOURS, RedisServer, running_server, server_binary


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.redis) for name in FLAVOURS])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    """A server of its own for each test, to be killed and started again."""
    if server_binary(request.param) is None:
        pytest.skip(f"{request.param}-server is not installed")
    with running_server(tmp_path / "data", request.param) as started:
        yield started
