"""Where the time and the CPU of a task go: by process of the service, with the wall time and the gap between steps.

    python -m bench.task_cost [--at-once 1 8 32] [--rounds 5] [--tasks N] [--verify] [--json FILE]

CPU is that of the service's own processes (git included): the commands in the boxes and the Docker engine are not in it.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import processes
from bench.model_process import ask, model_process
from bench.peers import patchyard
from bench.peers.meter import Meter
from bench.peers.trajectory import make_repository


async def _round(peer: patchyard.Peer, home: Path, port: int, at_once: int, tasks: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        os.chmod(folder, 0o755)
        repositories = [make_repository(Path(folder) / f"r{i}") for i in range(tasks)]
        ask(port, "/reset", "POST")
        before, began = processes.cpu_of(home), time.monotonic()
        with Meter() as meter:
            fixed = await peer.run(repositories, at_once, meter)
        wall = time.monotonic() - began
        used = {name: after.since(before[name]) for name, after in processes.cpu_of(home).items() if name in before}
        return {
            "at_once": at_once,
            "fixed": fixed,
            "tasks": tasks,
            "wall_s_per_task": wall / tasks,
            "tasks_per_min": 60 * tasks / wall,
            "gap_p50_ms": statistics.median(ask(port, "/stats")["gaps_ms"]),
            "cpu_ms_per_task": {name: round(1000 * part.own_s / tasks, 1) for name, part in used.items()},
            "git_cpu_ms_per_task": round(1000 * sum(part.children_s for part in used.values()) / tasks, 1),
            "service_cpu_s_per_task": sum(part.own_s + part.children_s for part in used.values()) / tasks,
            "machine_cpu_s_per_task": meter.usage.cpu_s / tasks,
            "peak_pss_mib": meter.usage.peak_pss_mib,
            "load": os.getloadavg()[0],
        }


async def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    scratch = Path(tempfile.mkdtemp(prefix="bench-"))
    rows: list[dict[str, Any]] = []
    try:
        with model_process("bench.peers.mock_model") as port:
            async with patchyard.service(scratch / "home", port, patchyard.image_id()) as plain:
                peer = plain.with_verification() if options.verify else plain
                await _round(peer, scratch / "home", port, 1, 1)
                for number in range(options.rounds):
                    for at_once in options.at_once:
                        tasks = options.tasks or (3 if at_once == 1 else max(16, at_once))
                        rows.append({"round": number, **await _round(peer, scratch / "home", port, at_once, tasks)})
                        print(json.dumps(rows[-1]), flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, help="tasks of each measurement; default 3 alone, at least 16 otherwise")
    parser.add_argument("--verify", action="store_true", help="with a verification container for each task")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = asyncio.run(measure(options))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
