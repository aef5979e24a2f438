from collections.abc import Iterator

import pytest
import redis

from tests.conformance.queue.kit import MakeBackend, backend_maker
from tests.servers import FLAVOURS, redis_server, server_binary

SERVERS = ["memory", *(pytest.param(name, marks=pytest.mark.redis) for name in FLAVOURS)]


@pytest.fixture(scope="session")
def server_urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """One server of each kind for all tests; started when first asked for."""
    import contextlib

    with contextlib.ExitStack() as stack:

        class Urls(dict[str, str]):
            def __missing__(self, flavour: str) -> str:
                if server_binary(flavour) is None:
                    pytest.skip(f"{flavour}-server is not installed")
                self[flavour] = stack.enter_context(redis_server(tmp_path_factory.mktemp(flavour), flavour))
                return self[flavour]

        yield Urls()


@pytest.fixture(params=SERVERS)
def backend(request: pytest.FixtureRequest, server_urls: dict[str, str]) -> MakeBackend:
    """Makes backends of an empty queue: in memory, on Redis and on Valkey."""
    if request.param == "memory":
        return backend_maker("memory:")
    url = server_urls[request.param]
    with redis.Redis.from_url(url) as client:
        client.flushall()
    return backend_maker(url)
