"""API and workers do not know each other; the bell between them is a name, a queue and a key prefix that must agree."""

import pytest

from api import doorbell
from workers import broker


def test_the_bell_is_heard_where_it_is_rung() -> None:
    assert doorbell.TASK_NAME == broker.RUN_NEXT_TURN
    assert doorbell.QUEUE_NAME == broker.TURNS
    assert doorbell.KEY_PREFIX == broker.KEY_PREFIX


@pytest.mark.parametrize(
    "url",
    [
        "unix:///home/u/.patchyard/redis.sock",
        "unix:///a/b.sock?db=3",
        "unix://user:secret@/a/b.sock",
        "redis://h:6379/0",
        "rediss://:p@h:6380/1",
    ],
)
def test_both_find_the_broker_at_the_same_address(url: str) -> None:
    assert doorbell.broker_url(url) == broker.broker_url(url)
