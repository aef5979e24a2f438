"""The bell on a real broker."""

from pathlib import Path

import pytest
import redis

from api.doorbell import CeleryDoorbell
from tests.servers import running_server

pytestmark = pytest.mark.redis


def test_one_ring_is_one_message_for_the_workers_and_a_restart_is_survived(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        bell = CeleryDoorbell(server.url)
        bell.ring()
        bell.ring()
        bell.close()
        with redis.Redis(unix_socket_path=str(server.socket)) as client:
            assert client.llen("py:celery:turns") == 2
            message = client.lindex("py:celery:turns", 0)
            assert isinstance(message, bytes)
            assert b"patchyard.run_next_turn" in message
        server.kill()
        away = CeleryDoorbell(server.url)
        away.ring()
        away.close()
        server.start()
        again = CeleryDoorbell(server.url)
        again.ring()
        again.close()
        with redis.Redis(unix_socket_path=str(server.socket)) as client:
            assert client.llen("py:celery:turns") == 3
