import subprocess
import sys

import pytest

from patchyard.adapters.queue.broker import RUN_MAINTENANCE, RUN_NEXT_TURN, broker_url
from patchyard.settings import Settings
from tests.waiting import PROCESS_S
from workers.broker import configuration


@pytest.mark.parametrize(
    ("ours", "celerys"),
    [
        ("redis://localhost:6379/2", "redis://localhost:6379/2"),
        ("rediss://user:pw@host/0", "rediss://user:pw@host/0"),
        ("unix:///run/redis.sock", "redis+socket:///run/redis.sock?virtual_host=0"),
        ("unix:///run/redis.sock?db=3", "redis+socket:///run/redis.sock?virtual_host=3"),
        ("unix://:pw@/run/redis.sock", "redis+socket://:pw@/run/redis.sock?virtual_host=0"),
    ],
)
def test_broker_url(ours: str, celerys: str) -> None:
    assert broker_url(ours) == celerys


def test_a_lost_bell_is_never_redelivered_as_a_second_run() -> None:
    config = configuration(Settings())
    assert config["task_acks_late"] is False
    assert config["worker_disable_prefetch"] is True
    assert config["task_ignore_result"] is True
    assert config["broker_transport_options"]["visibility_timeout"] == 60
    assert config["worker_cancel_long_running_tasks_on_connection_loss"] is False


def test_the_tasks_are_registered_and_importing_makes_no_app() -> None:
    code = (
        "import workers.app as module; assert module._app is None\n"
        "names = set(module.app.tasks)\n"
        f"assert {{{RUN_NEXT_TURN!r}, {RUN_MAINTENANCE!r}}} <= names, names\n"
        "assert module.app is module.app\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PROCESS_S)
