"""`patchyard fix` while a part of the service dies or is away: the one who watches sees one turn, without a gap, to its end."""

import asyncio
import json
import os
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from patchyard.adapters.queue import QueueCore
from tests.e2e.fleet import Fleet, docker, fleet
from tests.e2e.repositories import FIX, VERIFY, buggy_repository
from tests.e2e.service import lose
from tests.e2e.test_patch import call, patch, say
from tests.integration.cli.service import kill
from tests.servers_s3 import CREDENTIALS
from tests.waiting import PROCESS_S, WAIT_S, wait_for

pytestmark = [pytest.mark.engine, pytest.mark.redis, pytest.mark.timeout(300)]

BEGUN = "echo begun; until test -e go; do sleep 0.1; done; rm go; echo over"
"""Goes on when the test says so."""


CASES: dict[str, list[dict[str, Any]]] = {
    **{name: [call(BEGUN), patch(FIX), say("Fixed.")] for name in ("redis", "api", "store", "catalog")},
    "worker": [call("echo begun; sleep 600"), patch(FIX), say("Fixed.")],
}
SCRIPT = {"threads": [{"match": {"contains": f"case {name}."}, "steps": steps} for name, steps in CASES.items()]}


@dataclass
class Bucket:
    """An S3 server that can be away for a while and comes back with all that it held."""

    port: int = 0
    server: ThreadedMotoServer | None = None

    def start(self) -> None:
        self.server = ThreadedMotoServer(ip_address="127.0.0.1", port=self.port, verbose=False)
        self.server.start()
        self.port = self.server.get_host_and_port()[1]

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop()
            self.server = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    store = Bucket()
    store.start()
    keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
    client = boto3.session.Session(**keys).client("s3", endpoint_url=store.url, region_name="us-east-1")
    client.create_bucket(Bucket="patchyard")
    client.close()
    yield store
    store.stop()


@pytest.fixture(scope="module")
def service(bucket: Bucket) -> Iterator[Fleet]:
    """Its rollouts are in S3; its collector is away, which must not be noticed in any of these tests."""
    store = {"PATCHYARD_STORE_URL": "s3://patchyard/here", "PATCHYARD_S3_ENDPOINT_URL": bucket.url}
    with fleet(SCRIPT, PATCHYARD_OTLP_ENDPOINT="http://127.0.0.1:9", **store, **CREDENTIALS) as running:
        yield running
        assert [str(violation) for violation in running.model.violations] == []


@pytest.fixture(scope="module")
def repository(service: Fleet) -> Path:
    folder = service.home.root / "bug"
    folder.mkdir()
    return buggy_repository(folder)


@dataclass
class Watched:
    """A `fix --json` that runs beside the test."""

    process: "subprocess.Popen[str]"
    events: list[dict[str, Any]] = field(default_factory=list)
    task: dict[str, Any] | None = None
    news: threading.Condition = field(default_factory=threading.Condition)

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            value = json.loads(line)
            with self.news:
                if value.get("type") == "task":
                    self.task = value["task"]
                else:
                    self.events.append(value)
                self.news.notify_all()

    def wait_for(self, seen: Callable[[dict[str, Any]], bool], what: str) -> None:
        with self.news:
            assert self.news.wait_for(lambda: any(seen(event["msg"]) for event in self.events), WAIT_S), (what, self.kinds())

    def kinds(self) -> list[str]:
        return [event["msg"]["type"] for event in self.events if event["ordinal"] is not None]

    def end(self) -> None:
        """One turn, one end, every durable event once and in order, a verified patch."""
        assert self.process.stderr is not None
        errors = self.process.stderr.read()
        assert self.process.wait(PROCESS_S) == 0, (errors, self.kinds())
        ordinals = [event["ordinal"] for event in self.events if event["ordinal"] is not None]
        assert ordinals == sorted(set(ordinals))
        kinds = self.kinds()
        assert kinds.count("turn_started") == kinds.count("turn_completed") == 1
        assert "turn_failed" not in kinds
        assert len({event["turn_id"] for event in self.events if event.get("turn_id")}) == 1
        assert self.task is not None
        assert (self.task["status"], self.task["verified"]) == ("succeeded", True)


@pytest.fixture
def watch(service: Fleet, repository: Path) -> Iterator[Callable[[str], Watched]]:
    started: list[Watched] = []

    def start(case: str) -> Watched:
        words = ["fix", str(repository), "--issue", f"case {case}. x", "--verify", VERIFY, "--json"]
        watched = Watched(service.home.start(*words))
        reader = threading.Thread(target=watched.read, daemon=True)
        reader.start()
        started.append(watched)
        return watched

    yield start
    for watched in started:
        watched.process.kill()
        watched.process.communicate()


def begun(msg: dict[str, Any]) -> bool:
    return msg["type"] == "exec_output_delta" and "begun" in msg["delta"]


def go_on(service: Fleet) -> None:
    """Let the command end."""
    for tree in (service.root / "workspaces" / "checkouts").glob("*/workspace"):
        (tree / "go").touch()


async def _lose(service: Fleet, thread_id: str) -> None:
    queue = QueueCore(f"unix://{service.root / 'redis.sock'}")
    await queue.open()
    await lose(queue, thread_id)
    await queue.close()


@pytest.mark.parametrize("victim", ["redis", "api"])
def test_a_watcher_goes_on_after_a_server_was_killed(service: Fleet, watch: Callable[[str], Watched], victim: str) -> None:
    watched = watch(victim)
    watched.wait_for(begun, "the command begins")
    before = service.home.process(victim)
    kill(before)
    go_on(service)
    watched.end()
    assert service.home.process(victim).pid != before.pid
    record = [json.loads(line) for line in service.home.cli("rollout", "cat", _task(watched)).stdout.splitlines()]
    told = {line["ordinal"] for line in record if line["type"] == "event_msg"}
    assert told == {event["ordinal"] for event in watched.events if event["ordinal"] is not None}, "the watcher has missed one"


def test_a_killed_workers_command_is_not_lost_silently(service: Fleet, watch: Callable[[str], Watched]) -> None:
    watched = watch("worker")
    watched.wait_for(begun, "the command begins")
    boxes = docker("ps", "-q", "--filter", "label=patchyard.kind=turn").split()
    ours = [box for box in boxes if str(service.root) in docker("inspect", "-f", "{{json .Mounts}}", box)]
    assert len(ours) == 1
    init = int(docker("inspect", "-f", "{{.State.Pid}}", ours[0]))
    kill(service.home.process("worker-1"))
    wait_for(lambda: not _alive(init), "the box dies with its worker")
    asyncio.run(_lose(service, watched.events[0]["thread_id"]))
    watched.end()
    assert watched.kinds().count("turn_recovered") == 1
    items = {
        kind: [e["msg"]["item"] for e in watched.events if e["msg"]["type"] == kind]
        for kind in ("item_started", "item_completed")
    }
    assert sorted(item["id"] for item in items["item_started"]) == sorted(item["id"] for item in items["item_completed"])
    (command,) = [item for item in items["item_completed"] if item["type"] == "command_execution"]
    assert command["status"] == "interrupted"
    requests = [entry for entry in service.model.requests if entry.body and "case worker." in json.dumps(entry.body)]
    outputs = [str(item["output"]) for item in requests[-1].input if item.get("type") == "function_call_output"]
    assert "worker" in outputs[0], "the model is told that its command was cut off"


def test_a_store_that_is_away_for_seconds_delays_the_end_only(
    service: Fleet, bucket: Bucket, watch: Callable[[str], Watched]
) -> None:
    watched = watch("store")
    watched.wait_for(begun, "the command begins")
    bucket.stop()
    go_on(service)
    try:
        watched.wait_for(lambda msg: msg["type"] == "item_completed" and msg["item"]["type"] == "agent_message", "the answer")
        log = service.root / "logs" / "worker-1.log"
        wait_for(lambda: "the turn waits for the store" in log.read_text(), "the turn waits")
        assert service.home.json("status", code=1)["ready"] is False
    finally:
        bucket.start()
    watched.end()


def test_a_catalog_that_is_away_never_stops_a_turn(service: Fleet, watch: Callable[[str], Watched]) -> None:
    watched = watch("catalog")
    watched.wait_for(begun, "the command begins")
    with closing(sqlite3.connect(service.root / "catalog.db", isolation_level=None)) as catalog:
        catalog.execute("BEGIN EXCLUSIVE")
        go_on(service)
        watched.wait_for(lambda msg: msg["type"] == "turn_completed", "the turn ends without the catalog")
        assert watched.process.poll() is None, "fix waits for the result"
        catalog.execute("ROLLBACK")
    watched.end()


def _task(watched: Watched) -> str:
    assert watched.task is not None
    return str(watched.task["id"])


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
