"""The bell on a real broker."""

from pathlib import Path

import pytest
import redis

from api.doorbell import CeleryDoorbell
from tests.servers import running_server
from tests.waiting import WAIT_S, wait_for

pytestmark = pytest.mark.redis


def test_one_ring_is_one_message_for_the_workers_and_a_restart_is_survived(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        bell = CeleryDoorbell(server.url)
        bell.ring()
        bell.ring()
        with redis.Redis(unix_socket_path=str(server.socket)) as client:
            wait_for(lambda: client.llen("py:celery:turns") == 2, "both bells are in the broker")
            message = client.lindex("py:celery:turns", 0)
            assert isinstance(message, bytes)
            assert b"patchyard.run_next_turn" in message
        bell.close()
        server.kill()
        away = CeleryDoorbell(server.url)
        away.ring()
        thread = away._thread
        away.close()
        assert thread is not None
        thread.join(WAIT_S)  # nobody else waits so long for a bell
        server.start()
        again = CeleryDoorbell(server.url)
        again.ring()
        with redis.Redis(unix_socket_path=str(server.socket)) as client:
            wait_for(lambda: client.llen("py:celery:turns") == 3, "the bell is in the broker")
        again.close()
