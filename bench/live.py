"""Turns that stream at once: how late a model's delta reaches a subscriber, and what the processes weigh and use meanwhile.

    python -m bench.live [--turns 50] [--streaming 50] [--context-kb 0] [--every-ms 20] [--seconds 20] [--json FILE]

The model writes the time into each delta; every streaming turn has one subscriber that reads through the real API with the SDK.
Coalescing (at most 40 ms) is included. Only what happens while all of them stream counts. With more turns than streaming ones
the others are held by the same worker meanwhile: a third waits for the model, a third for a person's answer (within the hold
time), a third for a command that runs in a box of its own.
"""

import argparse
import asyncio
import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import processes
from bench.figures import quantile
from bench.model_process import ask, model_process
from bench.peers.patchyard import image_id
from bench.service import service, state
from bench.stamping_model import WAITS
from patchyard.client import PatchyardClient
from patchyard.protocol.events import AgentMessageDelta, Event, ItemStarted, RequestUserInput, TurnStarted
from patchyard.protocol.items import CommandExecutionItem
from patchyard.protocol.policies import ApprovalMode
from patchyard.protocol.tasks import NoSource, TaskSpec

_AT_ONCE = 16
"""Waiting turns that are started together: the engine makes four boxes at a time anyway."""


@dataclass(frozen=True)
class _Seen:
    sent_ns: int
    seen_ns: int


@dataclass(frozen=True)
class _Sample:
    """The service's processes at one moment."""

    at_ns: int
    memory: dict[str, processes.Memory]
    cpu: dict[str, processes.Cpu]


def _spec(instruction: str, approval: ApprovalMode = ApprovalMode.NEVER) -> TaskSpec:
    return TaskSpec(repository=NoSource(), instruction=instruction, approval=approval)


async def _hold(client: PatchyardClient, instruction: str) -> str:
    """Start a turn and return when it waits; what for."""
    created = await client.create_task(_spec(instruction, ApprovalMode.ON_REQUEST))
    async for event in client.task_events(created.task_id):
        if _waits(event, instruction):
            return instruction
    raise RuntimeError(f"the turn ended instead of waiting: {await client.get_task(created.task_id)}")


def _waits(event: Event, instruction: str) -> bool:
    call = WAITS[instruction]
    if call is None:
        return isinstance(event.msg, TurnStarted)
    if call[0] == "exec_command":
        return isinstance(event.msg, ItemStarted) and isinstance(event.msg.item, CommandExecutionItem)
    return isinstance(event.msg, RequestUserInput)


async def _hold_all(client: PatchyardClient, options: argparse.Namespace) -> dict[str, int]:
    """How many turns wait, by what for."""
    gate = asyncio.Semaphore(_AT_ONCE)
    kinds = list(WAITS)

    async def one(number: int) -> str:
        async with gate:
            return await _hold(client, kinds[number % len(kinds)])

    held = await asyncio.gather(*(one(number) for number in range(options.turns - options.streaming)))
    return {kind: held.count(kind) for kind in kinds}


async def _turn(client: PatchyardClient, seen: list[_Seen]) -> None:
    created = await client.create_task(_spec("Tell a story."))
    cut = ""
    async for event in client.task_events(created.task_id):
        if isinstance(event.msg, AgentMessageDelta):
            now = time.monotonic_ns()
            *whole, cut = (cut + event.msg.delta).split(" ")
            seen += [_Seen(int(stamp), now) for stamp in whole]


async def _watch(home: Path, stop: asyncio.Event) -> list[_Sample]:
    """A sample each second."""
    samples: list[_Sample] = []
    while not stop.is_set():
        memory = await asyncio.to_thread(processes.memory_of, home)
        samples.append(_Sample(time.monotonic_ns(), dict(memory), processes.cpu_of(home)))
        try:
            await asyncio.wait_for(stop.wait(), 1)
        except TimeoutError:
            continue
    return samples


def _mib(memory: processes.Memory) -> dict[str, float]:
    return {name: round(value, 1) for name, value in asdict(memory).items()}


def _peaks(samples: Sequence[_Sample]) -> dict[str, dict[str, float]]:
    """The most that each process weighed."""
    names = samples[0].memory
    weights = {name: [_mib(sample.memory[name]) for sample in samples if name in sample.memory] for name in names}
    return {name: {kind: max(row[kind] for row in rows) for kind in rows[0]} for name, rows in weights.items()}


def _cores(samples: Sequence[_Sample]) -> dict[str, float]:
    """Share of one core that each process used."""
    first, last = samples[0], samples[-1]
    seconds = (last.at_ns - first.at_ns) / 1e9
    return {name: round(last.cpu[name].since(first.cpu[name]).own_s / seconds, 3) for name in first.cpu}


async def measure(options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    home = scratch / "h"
    deltas = int(options.seconds * 1000 / options.every_ms)
    arguments = ["--deltas", str(deltas), "--every-ms", str(options.every_ms), "--context-kb", str(options.context_kb)]
    with model_process("bench.stamping_model", *arguments) as port:
        settings = {"SANDBOX_IMAGE": image_id(), "HOLD_TIME_S": "3000", "MODEL_IDLE_TIMEOUT_S": "3000"}
        with service(home, f"http://127.0.0.1:{port}/v1", **settings) as env:
            idle = {name: _mib(processes.memory(pid)) for name, pid in processes.pids(home).items()}
            async with PatchyardClient(state(env)["url"], (home / "token").read_text().strip()) as client:
                held = await _hold_all(client, options)
                stop = asyncio.Event()
                watching = asyncio.create_task(_watch(home, stop))
                turns: list[list[_Seen]] = [[] for _ in range(options.streaming)]
                await asyncio.gather(*(_turn(client, seen) for seen in turns))
                stop.set()
                samples = await watching
        assert len(ask(port, "/arrivals")) == options.turns
    since, until = max(turn[0].sent_ns for turn in turns), min(turn[-1].sent_ns for turn in turns)
    late = [(s.seen_ns - s.sent_ns) / 1e6 for turn in turns for s in turn if since <= s.sent_ns <= until]
    return {
        "turns": options.turns,
        "streaming": options.streaming,
        "waiting": held,
        "context_kb": options.context_kb,
        "deltas_a_second": round(options.streaming * 1000 / options.every_ms),
        "measured_s": round((until - since) / 1e9, 1),
        "count": len(late),
        "not_seen": options.streaming * deltas - sum(map(len, turns)),
        "p50_ms": round(quantile(late, 0.5), 1),
        "p99_ms": round(quantile(late, 0.99), 1),
        "max_ms": round(max(late), 1),
        "idle_mib": idle,
        "peak_mib": _peaks(samples),
        "cores": _cores([sample for sample in samples if since <= sample.at_ns <= until]),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--streaming", type=int, help="how many of them stream; the default: all")
    parser.add_argument("--context-kb", type=float, default=0, help="kB of text in each turn's history")
    parser.add_argument("--every-ms", type=float, default=20)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.streaming = options.streaming or options.turns
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
