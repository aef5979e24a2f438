"""Real processes, random deaths: after the storm each promise of architecture §10 must be seen in the records.

CHAOS_S (seconds of storm, default 12) and CHAOS_SEED may be set for longer or repeated runs.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from patchyard.adapters.queue import QueueCore, QueueUnavailable, ThreadRegistration, ThreadState
from patchyard.adapters.streams import EventHub
from patchyard.protocol import ops
from patchyard.protocol.errors import NotSubmittedReason
from patchyard.protocol.ids import new_id
from patchyard.protocol.ops import Submission, SubmissionReceipt
from tests.chaos.power import build_log, cut_power
from tests.conformance.queue.kit import say, until
from tests.servers import FLAVOURS, RedisServer, server_binary
from tests.waiting import WAIT_S

STORM_S = float(os.environ.get("CHAOS_S", "12"))
CALM_S = 120.0
LEASE_S = 1.5
WORKERS = 4
THREADS = 40
ROOT = Path(__file__).parents[2]


@dataclass
class Workers:
    """Four worker processes that die in many ways and are started again."""

    url: str
    folder: Path
    chance: random.Random
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    stopped: dict[int, float] = field(default_factory=dict)
    started: int = 0
    done: Counter[str] = field(default_factory=Counter)

    def spawn(self) -> "subprocess.Popen[bytes]":
        self.started += 1
        words = [sys.executable, "-m", "tests.chaos.worker", self.url, f"w{self.started}", str(LEASE_S)]
        with (self.folder / f"w{self.started}.log").open("wb") as log:
            return subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=log)

    def trouble(self) -> None:
        """One random misfortune. A frozen worker wakes up after its lease: a zombie."""
        for index, since in list(self.stopped.items()):
            if time.monotonic() - since > LEASE_S * 2:
                self.processes[index].send_signal(signal.SIGCONT)
                del self.stopped[index]
        index = self.chance.randrange(WORKERS)
        if index in self.stopped:
            return
        kind = self.chance.choice(["kill", "kill", "freeze", "term"])
        self.done[kind] += 1
        if kind == "freeze":
            self.processes[index].send_signal(signal.SIGSTOP)
            self.stopped[index] = time.monotonic()
            return
        process = self.processes[index]
        process.send_signal(signal.SIGKILL if kind == "kill" else signal.SIGTERM)
        process.wait(WAIT_S)
        self.processes[index] = self.spawn()

    def calm(self) -> None:
        for index in self.stopped:
            self.processes[index].send_signal(signal.SIGCONT)
        self.stopped.clear()

    def end(self) -> None:
        self.calm()
        for process in self.processes:
            process.kill()
            process.wait(WAIT_S)

    def complaints(self) -> str:
        return "".join(path.read_text() for path in self.folder.glob("w*.log"))


@dataclass
class Users:
    """Submit until they have an answer; each submission has a key, so that asking again is safe."""

    core: QueueCore
    chance: random.Random
    threads: list[str]
    answers: list[tuple[Submission, SubmissionReceipt]] = field(default_factory=list)
    asked_again: int = 0

    async def run(self, until: float) -> None:
        while time.monotonic() < until:
            kind = self.chance.choices(["input", "interrupt", "settings"], [8, 1, 1])[0]
            op: ops.Op = say("x")
            if kind == "interrupt":
                op = ops.Interrupt()
            elif kind == "settings":
                op = ops.ThreadSettings(overrides=ops.TurnOverrides())
            await self.submit(self.chance.choice(self.threads), op)
            await asyncio.sleep(0.01)

    async def submit(self, thread: str, op: ops.Op) -> None:
        submission = Submission(
            id=new_id(),
            tenant_id="default",
            thread_id=thread,
            op=op,
            submitted_at=time.time_ns() // 1_000_000,
            idempotency_key=new_id(),
        )
        while True:
            try:
                receipt = await self.core.submit(submission, registration=ThreadRegistration())
                break
            except QueueUnavailable:
                self.asked_again += 1
                await asyncio.sleep(0.05)
        self.answers.append((submission, receipt))


@dataclass
class Watchers:
    """One subscriber for each thread, from the first event to the last."""

    hub: EventHub
    seen: dict[str, list[int]] = field(default_factory=dict)
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    def watch(self, thread: str) -> None:
        self.seen[thread] = []

        async def follow() -> None:
            async for frame in self.hub.subscribe(thread):
                if frame.ordinal is not None:
                    self.seen[thread].append(frame.ordinal)

        self.tasks.append(asyncio.ensure_future(follow()))


@contextmanager
def chaos_server(folder: Path, flavour: Any) -> Iterator[tuple[RedisServer, Path]]:
    library = build_log(folder)
    log = folder / "fsync.log"
    log.touch()
    env = {"FSYNC_LOG": str(log)} | ({"LD_PRELOAD": str(library)} if library else {})
    server = RedisServer(folder / "data", flavour, env=env)
    try:
        server.start()
        yield server, log
    finally:
        server.stop()


async def storm(server: RedisServer, log: Path, workers: Workers, core: QueueCore, users: Users) -> None:
    over = time.monotonic() + STORM_S
    submitting = asyncio.ensure_future(users.run(over))
    outages = [time.monotonic() + STORM_S * share for share in (0.3, 0.7)]
    while time.monotonic() < over:
        await asyncio.sleep(0.4)
        await asyncio.to_thread(workers.trouble)
        await reap(core)
        if outages and time.monotonic() > outages[0]:
            outages.pop(0)
            workers.done[await asyncio.to_thread(outage, server, log)] += 1
            await asyncio.to_thread(server.start)
    await submitting
    await asyncio.to_thread(workers.calm)


def outage(server: RedisServer, log: Path) -> str:
    """A power cut where it can be simulated, the server's death otherwise."""
    if not log.stat().st_size:
        server.kill()
        return "server killed"
    cut_power(server, log)
    log.write_text("")
    return "power cut"


async def reap(core: QueueCore) -> None:
    try:
        await core.reap()
    except QueueUnavailable:
        return


async def settle(core: QueueCore, threads: list[str]) -> None:
    """Until every thread is idle; otherwise says which are not."""
    busy: list[ThreadState] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CALM_S):
            while True:
                await reap(core)
                states = [await core.thread_state(thread) for thread in threads]
                busy = [state for state in states if state is not None and state.status != "idle"]
                if not busy:
                    return
                await asyncio.sleep(0.2)
    raise AssertionError("still not idle:\n" + "\n".join(map(str, busy)))


async def check(core: QueueCore, users: Users, watchers: Watchers) -> int:
    """The promises; answers how many records were checked."""
    ends: Counter[str] = Counter()
    told: Counter[str] = Counter()
    applied: Counter[str] = Counter()
    records = 0
    for thread in users.threads:
        lines = [json.loads(line.json) for line in await core.read_lines(thread, after=None, limit=1_000_000)]
        records += len(lines)
        assert [line["ordinal"] for line in lines] == list(range(len(lines)))
        fences = [int(line["payload"]["message"].split()[1]) for line in lines if line["payload"]["type"] == "warning"]
        assert fences == sorted(fences), "a fenced worker wrote after its successor"
        for line in lines:
            match line["payload"]["type"]:
                case "turn_completed" | "turn_interrupted":
                    ends[line["turn_id"]] += 1
                    told.update(line["payload"].get("dropped_submission_ids", ()))
                case "item_completed":
                    told[line["payload"]["item"]["submission_id"]] += 1
                case "op_applied":
                    applied[line["submission_id"]] += 1
                case _:
                    pass
        state = await core.thread_state(thread)
        assert state is None or (state.waiting, state.active_turn_id, state.worker) == (0, None, None)
        assert watchers.seen[thread] == list(range(len(lines))), "a watcher missed an event or saw it twice"
    for submission, receipt in users.answers:
        match receipt.admission:
            case ops.Started(turn_id=turn):
                assert ends[turn] == 1, "one terminal event for each accepted turn"
            case ops.Steered():
                assert told[receipt.submission_id] == 1, "a steer is delivered once or given back"
            case ops.Applied() if isinstance(submission.op, ops.ThreadSettings):
                assert applied[receipt.submission_id] == 1
            case ops.Applied():
                assert applied[receipt.submission_id] <= 1
            case refused:
                assert refused.reason == NotSubmittedReason.NO_ACTIVE_TURN
    return records


@pytest.mark.redis
@pytest.mark.timeout(STORM_S + CALM_S + 3 * WAIT_S)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_nothing_is_lost_or_done_twice(flavour: Any, tmp_path: Path) -> None:
    if server_binary(flavour) is None:
        pytest.skip(f"{flavour}-server is not installed")
    chance = random.Random(int(os.environ.get("CHAOS_SEED", "7")))

    async def main(server: RedisServer, log: Path) -> None:
        core = QueueCore(server.url, lease_ttl_s=LEASE_S)
        await core.open()
        hub = EventHub(core)
        await hub.open()
        users = Users(core, chance, [new_id() for _ in range(THREADS)])
        watchers = Watchers(hub)
        workers = Workers(server.url, tmp_path, chance)
        try:
            for thread in users.threads:
                watchers.watch(thread)
            workers.processes = [workers.spawn() for _ in range(WORKERS)]
            await storm(server, log, workers, core, users)
            await settle(core, users.threads)
            await until(lambda: caught_up(core, watchers))
            records = await check(core, users, watchers)
        finally:
            await asyncio.to_thread(workers.end)
            await hub.close()
            await asyncio.gather(*watchers.tasks)
            await core.close()
        assert workers.complaints() == ""
        kinds = Counter(receipt.admission.type for _, receipt in users.answers)
        print(f"\n{flavour}: {records} records, {dict(kinds)}, {users.asked_again} asked again, {dict(workers.done)}")

    with chaos_server(tmp_path, flavour) as (server, log):
        asyncio.run(main(server, log))


async def caught_up(core: QueueCore, watchers: Watchers) -> bool:
    """Whether every watcher has seen as many events as there are records."""
    states = {thread: await core.thread_state(thread) for thread in watchers.seen}
    return all(state is None or len(watchers.seen[thread]) >= state.next_ordinal for thread, state in states.items())
