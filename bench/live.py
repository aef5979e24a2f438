"""50 turns that stream at once: how late a model's delta reaches a subscriber, and what the processes weigh meanwhile.

    python -m bench.live [--turns 50] [--every-ms 20] [--seconds 20] [--json FILE]

The model writes the time into each delta; every turn has one subscriber that reads through the real API with the SDK.
Coalescing (at most 40 ms) is included. Only deltas count that were sent while all turns were streaming.
"""

import argparse
import asyncio
import json
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import processes
from bench.figures import quantile
from bench.model_process import ask, model_process
from bench.peers.patchyard import image_id
from bench.service import service, state
from patchyard.client import PatchyardClient
from patchyard.protocol.events import AgentMessageDelta
from patchyard.protocol.policies import ApprovalMode
from patchyard.protocol.tasks import NoSource, TaskSpec


@dataclass(frozen=True)
class _Seen:
    sent_ns: int
    seen_ns: int


async def _watch(client: PatchyardClient, task_id: str, seen: list[_Seen]) -> None:
    cut = ""
    async for event in client.task_events(task_id):
        if isinstance(event.msg, AgentMessageDelta):
            now = time.monotonic_ns()
            *whole, cut = (cut + event.msg.delta).split(" ")
            seen += [_Seen(int(stamp), now) for stamp in whole]


async def _turn(client: PatchyardClient, seen: list[_Seen]) -> None:
    spec = TaskSpec(repository=NoSource(), instruction="Tell a story.", approval=ApprovalMode.NEVER)
    created = await client.create_task(spec)
    await _watch(client, created.task_id, seen)


async def _weigh(home: Path, stop: asyncio.Event) -> dict[str, dict[str, float]]:
    """The most that each process weighed, MiB."""
    peaks: dict[str, dict[str, float]] = {}
    while not stop.is_set():
        for name, memory in (await asyncio.to_thread(processes.memory_of, home)).items():
            peak = peaks.setdefault(name, {"rss_mib": 0.0, "pss_mib": 0.0})
            peak["rss_mib"] = max(peak["rss_mib"], round(memory.rss_mib, 1))
            peak["pss_mib"] = max(peak["pss_mib"], round(memory.pss_mib, 1))
        try:
            await asyncio.wait_for(stop.wait(), 1)
        except TimeoutError:
            continue
    return peaks


async def measure(options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    home = scratch / "h"
    deltas = int(options.seconds * 1000 / options.every_ms)
    arguments = ["--deltas", str(deltas), "--every-ms", str(options.every_ms)]
    with model_process("bench.stamping_model", *arguments) as port:
        with service(home, f"http://127.0.0.1:{port}/v1", SANDBOX_IMAGE=image_id()) as env:
            idle = {name: processes.memory(pid) for name, pid in processes.pids(home).items()}
            async with PatchyardClient(state(env)["url"], (home / "token").read_text().strip()) as client:
                stop = asyncio.Event()
                weighing = asyncio.create_task(_weigh(home, stop))
                turns: list[list[_Seen]] = [[] for _ in range(options.turns)]
                before = processes.cpu_of(home)
                await asyncio.gather(*(_turn(client, seen) for seen in turns))
                used = {name: after.since(before[name]).own_s for name, after in processes.cpu_of(home).items()}
                stop.set()
                peaks = await weighing
        assert len(ask(port, "/arrivals")) == options.turns
    together = [max(turn[0].sent_ns for turn in turns), min(turn[-1].sent_ns for turn in turns)]
    late = [(s.seen_ns - s.sent_ns) / 1e6 for turn in turns for s in turn if together[0] <= s.sent_ns <= together[1]]
    return {
        "turns": options.turns,
        "deltas_a_second": round(options.turns * 1000 / options.every_ms),
        "measured_s": round((together[1] - together[0]) / 1e9, 1),
        "count": len(late),
        "not_seen": options.turns * deltas - sum(map(len, turns)),
        "p50_ms": round(quantile(late, 0.5), 1),
        "p99_ms": round(quantile(late, 0.99), 1),
        "max_ms": round(max(late), 1),
        "idle_mib": {name: {"rss_mib": round(m.rss_mib, 1), "pss_mib": round(m.pss_mib, 1)} for name, m in idle.items()},
        "peak_mib": peaks,
        "cpu_s": {name: round(seconds, 2) for name, seconds in used.items()},
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--every-ms", type=float, default=20)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for _ in range(options.rounds):
        scratch = Path(tempfile.mkdtemp(prefix="bench-"))
        try:
            rows.append(asyncio.run(measure(options, scratch)))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        print(json.dumps(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
