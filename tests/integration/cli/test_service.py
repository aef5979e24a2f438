"""`up`, `down`, `status`: one machine's service through starts, crashes and stops."""

import json
import os
import signal
import socket
from pathlib import Path

import pytest
import redis

from patchyard.cli.services.identity import identify, read_pid_file
from tests.integration.cli.disks import fill, small_disk
from tests.integration.cli.service import Home, kill
from tests.servers import RedisServer
from tests.waiting import WAIT_S, wait_for

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]


def test_up_and_down_leave_nothing_behind(fresh: Home) -> None:
    assert "does not run" in fresh.cli("status", code=1).stdout
    url = fresh.up()
    status = fresh.json("status")
    assert (status["url"], status["ready"], status["redis"], status["workers"]) == (url, True, "started", 0)
    assert {part["name"]: part["state"] for part in status["components"]} == {"queue": "ok", "catalog": "ok", "store": "ok"}
    second = fresh.cli("up", "--detach")
    assert "runs already" in second.stderr
    assert url in second.stderr
    refused = fresh.cli("up", code=1)
    assert "runs already" in refused.stderr
    assert "patchyard down" in refused.stderr
    assert "stopped" in fresh.cli("down").stdout
    assert fresh.leftovers() == []
    assert "Nothing was running" in fresh.cli("down").stdout
    assert fresh.json("status", code=1)["answers"] is False


def test_the_foreground_service_ends_with_its_terminal(fresh: Home) -> None:
    process = fresh.start("up", "--workers", "0", "--json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["workers"] == 0
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert fresh.leftovers() == []


def test_a_crashed_api_comes_back_on_the_same_address_and_tasks_are_kept(fresh: Home) -> None:
    url = fresh.up()
    task = fresh.json("exec", "hello", "--no-repo", "--detach")["task_id"]
    before = fresh.process("api")
    kill(before)
    # Connections wait in the supervisor's socket until the next API takes them.
    assert fresh.json("tasks", "show", task)["status"] == "queued"
    assert fresh.process("api").pid != before.pid
    assert fresh.json("status")["url"] == url
    redis = fresh.process("redis")
    kill(redis)
    wait_for(lambda: fresh.json("status", code=None)["ready"], "Redis is started again")
    assert fresh.json("tasks", "show", task)["status"] == "queued"
    assert fresh.json("tasks", "cancel", task)["status"] == "cancelled"


def test_what_a_killed_supervisor_left_is_cleaned_up(fresh: Home) -> None:
    fresh.up()
    task = fresh.json("exec", "hello", "--no-repo", "--detach")["task_id"]
    redis, api, supervisor = fresh.process("redis"), fresh.process("api"), fresh.supervisor()
    kill(supervisor)
    wait_for(lambda: identify(supervisor.pid) != supervisor, "the supervisor is gone")
    fresh.up()
    assert fresh.process("redis") == redis, "the Redis of before is taken over, with all that it holds"
    assert identify(api.pid) != api
    assert fresh.json("tasks", "show", task)["status"] == "queued"
    kill(fresh.supervisor())
    fresh.cli("down")
    assert fresh.leftovers() == []
    assert read_pid_file(fresh.root / "h" / "run" / "redis.pid") is None


def test_a_redis_that_does_not_answer_yet_is_waited_for_and_not_doubled(fresh: Home) -> None:
    fresh.up()
    task = fresh.json("exec", "hello", "--no-repo", "--detach")["task_id"]
    redis, supervisor = fresh.process("redis"), fresh.supervisor()
    kill(supervisor)
    wait_for(lambda: identify(supervisor.pid) != supervisor, "the supervisor is gone")
    kill(fresh.process("api"))
    os.kill(redis.pid, signal.SIGSTOP)
    starting = fresh.start("up", "--detach", "--workers", "0")
    log = fresh.root / "h" / "logs" / "supervisor.log"
    wait_for(lambda: "is waited for" in log.read_text(), "the second start waits")
    os.kill(redis.pid, signal.SIGCONT)
    assert starting.wait(WAIT_S) == 0
    starting.communicate()
    assert fresh.process("redis") == redis
    assert fresh.json("tasks", "show", task)["status"] == "queued"


def test_a_port_that_is_taken_is_named(fresh: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = fresh.cli("up", "--detach", code=1, PATCHYARD_API_PORT=port)
    assert f"127.0.0.1:{port}" in done.stderr
    assert "PATCHYARD_API_PORT" in done.stderr
    assert fresh.leftovers() == []


def test_a_redis_with_the_wrong_settings_is_refused(fresh: Home, tmp_path: Path) -> None:
    """Both the one on our own socket and one by URL; the message names setting and remedy."""
    server = RedisServer(tmp_path / "data", fsync="everysec")
    server.start()
    try:
        by_url = fresh.cli("up", "--detach", "--workers", "0", code=1, PATCHYARD_REDIS_URL=server.url)
        assert "appendfsync" in by_url.stderr
        assert "CONFIG SET appendfsync always" in by_url.stderr
        (fresh.root / "h").mkdir(exist_ok=True)
        (fresh.root / "h" / "redis.sock").unlink(missing_ok=True)
        (fresh.root / "h" / "redis.sock").symlink_to(server.socket)
        attached = fresh.cli("up", "--detach", "--workers", "0", code=1)
        assert "could lose accepted work: appendfsync is everysec" in attached.stderr
        assert fresh.leftovers() == []
        fresh.up(PATCHYARD_ALLOW_VOLATILE_REDIS="true")
        assert fresh.json("status")["redis"] == "attached"
        fresh.cli("down")
        assert server.process is not None
        assert server.process.poll() is None, "what we did not start is left running"
    finally:
        server.stop()


def test_a_volatile_redis_is_refused_or_loudly_allowed(fresh: Home, tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "data")
    server.start()
    try:
        with redis.Redis(unix_socket_path=str(server.socket)) as client:
            client.config_set("appendonly", "no")
        url = {"PATCHYARD_REDIS_URL": server.url}
        refused = fresh.cli("up", "--detach", code=1, **url).stderr
        assert refused.count("`appendonly` is `no`") == 1, refused
        assert "CONFIG SET appendonly yes" in refused
        assert "Traceback" not in refused
        assert 'File "' not in refused
        assert fresh.leftovers() == []
        checks = {check["name"]: check for check in fresh.json("doctor", code=1, **url)["checks"]}
        assert checks["redis"]["status"] == "failed"
        assert "appendonly yes" in checks["redis"]["remedy"]
        url["PATCHYARD_ALLOW_VOLATILE_REDIS"] = "1"
        allowed = fresh.cli("up", "--detach", "--workers", "0", **url).stderr
        assert "WARNING: for development only" in allowed
        assert "`appendonly` is `no`" in allowed
        assert "What to do: set `appendonly yes`" in allowed
        queue = fresh.json("status", **url)["components"][0]
        assert (queue["name"], queue["state"]) == ("queue", "warning")
        fresh.cli("down")
    finally:
        server.stop()


def test_a_redis_that_is_not_there_is_named(fresh: Home) -> None:
    done = fresh.cli("up", "--detach", code=1, PATCHYARD_REDIS_URL="redis://127.0.0.1:1/0")
    assert "worker-1 does not start: The queue is not available" in done.stderr
    assert '"level"' not in done.stderr, "a log line is no message"
    assert fresh.leftovers() == []


def test_a_home_that_is_too_long_for_a_socket_is_refused_before_anything_is_made(fresh: Home) -> None:
    home = fresh.root / ("x" * 100) / "h"
    for words in (["up", "--detach"], ["fix", ".", "--issue", "x"]):
        done = fresh.cli(*words, code=1, PATCHYARD_HOME=str(home))
        assert "too long for a unix socket" in done.stderr
        assert "Set PATCHYARD_HOME" in done.stderr
        assert not home.parent.exists()
    checks = {check["name"]: check for check in fresh.json("doctor", code=1, PATCHYARD_HOME=str(home))["checks"]}
    assert "too long" in checks["redis"]["detail"]
    assert "PATCHYARD_HOME" in checks["redis"]["remedy"]
    longest = str(fresh.root / "y")
    longest += "y" * (103 - len("/redis.sock") - len(longest))
    assert fresh.cli("up", "--detach", "--workers", "0", PATCHYARD_HOME=longest).returncode == 0
    fresh.cli("down", PATCHYARD_HOME=longest)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("part", ["", "redis"])
def test_a_full_disk_is_named_and_survived(fresh: Home, part: str) -> None:
    with small_disk(Path(fresh.env["PATCHYARD_HOME"]) / part, mib=16 if part else 300) as disk:
        fresh.up()
        ballast = fill(disk)
        doctor = {check["name"]: check for check in fresh.json("doctor", code=None)["checks"]}
        assert "MiB are free" in doctor["disk"]["detail"]
        assert "Free some space" in doctor["disk"]["remedy"]
        refused = fresh.cli("exec", "--no-repo", "--detach", "hello", code=None)
        if refused.returncode:  # Redis may be gone with the acknowledged submission: that one goes on afterwards
            assert refused.returncode == 1
            assert "No space left" in refused.stderr or "queue is not available" in refused.stderr
            assert "Traceback" not in refused.stderr
        ballast.unlink()
        wait_for(lambda: fresh.json("status", code=None)["ready"], "the service comes back")
        task = fresh.json("exec", "--no-repo", "--detach", "hello")["task_id"]
        assert fresh.json("tasks", "show", task)["status"] == "queued"
        listed = fresh.json("tasks", "list")["data"]
        assert len(listed) == 1 + (refused.returncode == 0), "a refused task leaves no row"
        fresh.cli("down")
        assert fresh.leftovers() == []
        if not part:
            fill(disk, leave_mib=100)
            done = fresh.cli("up", "--detach", code=1)
            assert "disk" in done.stderr
            assert "PATCHYARD_HOME" in done.stderr


def test_an_api_that_does_not_start_shows_its_last_words(fresh: Home) -> None:
    done = fresh.cli("up", "--detach", "--workers", "0", code=1, PATCHYARD_STORE_URL="ftp://nowhere/x")
    assert "api ended with exit code 1 while starting" in done.stderr
    assert "'ftp://nowhere/x' is not a store" in done.stderr
    assert fresh.leftovers() == []


def test_wrong_settings_are_named(fresh: Home) -> None:
    done = fresh.cli("tasks", "list", code=2, PATCHYARD_API_PORT="many")
    assert "api_port" in done.stderr
    (fresh.root / "h").mkdir()
    (fresh.root / "h" / "patchyard.toml").write_text("surprise = 1\n")
    assert "there is no setting surprise" in fresh.cli("status", code=2).stderr
    (fresh.root / "h" / "patchyard.toml").write_text('model_bse_url = "x"\n')
    done = fresh.cli("up", "--detach", code=2)
    assert "there is no setting model_bse_url, did you mean model_base_url?" in done.stderr
    assert "/h/patchyard.toml:1)" in done.stderr
    assert "Nothing was running" in fresh.cli("down").stdout, "a service can be stopped whatever its settings are"
    (fresh.root / "h" / "patchyard.toml").write_text("not toml")
    assert "patchyard.toml" in fresh.cli("status", code=2).stderr


def test_commands_without_a_service_say_how_to_get_one(fresh: Home) -> None:
    listing = fresh.cli("tasks", "list", code=1, PATCHYARD_API_PORT="9")
    assert "patchyard up --detach" in listing.stderr
    fixing = fresh.cli("exec", "x", "--no-repo", "--no-start", code=1)
    assert "No Patchyard service is running" in fixing.stderr
    assert "--no-start" in fixing.stderr
    remote = fresh.cli("exec", "x", "--no-repo", code=1, PATCHYARD_API_URL="http://127.0.0.1:9")
    assert "PATCHYARD_API_URL" in remote.stderr
    assert fresh.leftovers() == []


def test_help_and_version_need_nothing(fresh: Home) -> None:
    assert fresh.cli("--version").stdout.startswith("patchyard ")
    page = fresh.cli("fix", "--help").stdout
    assert "Examples:" in page
    assert not (fresh.root / "h").exists()
