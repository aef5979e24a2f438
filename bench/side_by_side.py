"""The same ten commands through Patchyard and through what people would use instead, interleaved in one run.

python -m bench.side_by_side [--at-once 1 8] [--tasks 8] [--rounds 3] [--only patchyard codex-exec …]
"""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

from bench.model_process import ask, model_process
from bench.peers import codex, mini_swe, patchyard
from bench.peers.meter import Meter
from bench.peers.trajectory import is_fixed, make_repository

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("PATCHYARD_BENCH_CACHE", ".patchyard/bench-cache")).absolute()
_GONE_WITHIN_S = 3.0
NAMES = ("patchyard", "patchyard-verified", "codex-exec", "codex-app-server", "mini-swe-agent")


class Peer(Protocol):
    """Runs the trajectory on repositories; returns how many were fixed."""

    async def run(self, repositories: list[Path], at_once: int, meter: Meter) -> int: ...


class _Codex:
    def __init__(self, port: int, scratch: Path, *, server: bool) -> None:
        self._binary = codex.install(CACHE / "codex")
        self._env = codex.environment(scratch / f"codex-{server}", CACHE / "codex", port)
        self._run = codex.run_app_server if server else codex.run_exec

    async def run(self, repositories: list[Path], at_once: int, meter: Meter) -> int:
        await self._run(self._binary, self._env, repositories, at_once, meter)
        return _fixed(repositories)


class _Mini:
    def __init__(self, port: int, image: str) -> None:
        self._python, self._port, self._image = mini_swe.install(CACHE / "mini"), port, image

    async def run(self, repositories: list[Path], at_once: int, meter: Meter) -> int:
        await mini_swe.run(self._python, self._image, self._port, repositories, at_once, meter)
        return _fixed(repositories)


def _fixed(repositories: list[Path]) -> int:
    return sum(is_fixed((repository / "calc/ops.py").read_text()) for repository in repositories)


async def _measure(name: str, peer: Peer, port: int, at_once: int, tasks: int, scratch: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        repositories = [make_repository(Path(folder) / f"r{i}") for i in range(tasks)]
        os.chmod(folder, 0o755)
        before = ask(port, "/stats")["cpu_s"]
        ask(port, "/reset", "POST")
        with Meter() as meter:
            fixed = await peer.run(repositories, at_once, meter)
        stats = ask(port, "/stats")
        usage = meter.usage
        left = await asyncio.to_thread(_left_behind, (Path(folder), scratch))
        mini_swe.remove_leftovers()
        return {
            "system": name,
            "at_once": at_once,
            "tasks": tasks,
            "fixed": fixed,
            "tasks_per_min": 60 * tasks / usage.wall_s,
            "cpu_s_per_task": (usage.cpu_s - (stats["cpu_s"] - before)) / tasks,
            "gap_p50_ms": statistics.median(stats["gaps_ms"]) if stats["gaps_ms"] else None,
            "peak_pss_mib": usage.peak_pss_mib,
            "containers_left": left,
        }


def _left_behind(folders: tuple[Path, ...]) -> int:
    """Containers of this run that still run 3 s after its end."""
    deadline = time.monotonic() + _GONE_WITHIN_S
    while (left := _containers(folders)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def _containers(folders: tuple[Path, ...]) -> int:
    """Running containers that mount something of this run; others may share the engine."""
    running = subprocess.run(["docker", "ps", "-q"], capture_output=True, text=True).stdout.split()
    if not running:
        return 0
    form = "{{range .Mounts}}{{.Source}} {{end}}"
    shown = subprocess.run(["docker", "inspect", "--format", form, *running], capture_output=True, text=True).stdout
    return sum(any(str(folder) in line for folder in folders) for line in shown.splitlines())


@contextlib.asynccontextmanager
async def _peers(wanted: list[str], port: int, scratch: Path) -> AsyncIterator[dict[str, Peer]]:
    image = patchyard.image_id()
    makers = {
        "codex-exec": lambda: _Codex(port, scratch, server=False),
        "codex-app-server": lambda: _Codex(port, scratch, server=True),
        "mini-swe-agent": lambda: _Mini(port, image),
    }
    peers: dict[str, Peer] = {}
    for name in wanted:
        if name in makers:
            try:
                peers[name] = makers[name]()
            except FileNotFoundError as error:
                print(f"skipped: {name}: {error}", flush=True)
    async with contextlib.AsyncExitStack() as stack:
        if {"patchyard", "patchyard-verified"} & set(wanted):
            ours = await stack.enter_async_context(patchyard.service(scratch / "home", port, image))
            variants: dict[str, Peer] = {"patchyard": ours, "patchyard-verified": ours.with_verification()}
            peers = {name: variants.get(name) or peers[name] for name in wanted if name in variants or name in peers}
        yield peers


def _print(rows: list[dict[str, Any]]) -> None:
    print(
        f"\n{'system':<18}{'at once':>8}{'tasks/min':>11}{'CPU s/task':>12}{'gap p50 ms':>12}{'peak PSS MiB':>14}{'fixed':>8}{'left':>6}"
    )
    keys = sorted({(row["system"], row["at_once"]) for row in rows}, key=lambda k: (k[1], NAMES.index(k[0])))
    for system, at_once in keys:
        mine = [row for row in rows if (row["system"], row["at_once"]) == (system, at_once)]
        mid = {
            k: statistics.median(row[k] or 0 for row in mine)
            for k in ("tasks_per_min", "cpu_s_per_task", "gap_p50_ms", "peak_pss_mib")
        }
        fixed, tasks = sum(row["fixed"] for row in mine), sum(row["tasks"] for row in mine)
        print(
            f"{system:<18}{at_once:>8}{mid['tasks_per_min']:>11.1f}{mid['cpu_s_per_task']:>12.2f}{mid['gap_p50_ms']:>12.0f}"
            f"{mid['peak_pss_mib']:>14.0f}{f'{fixed}/{tasks}':>8}{max(row['containers_left'] for row in mine):>6}"
        )


async def _main(arguments: argparse.Namespace) -> None:
    scratch = Path(tempfile.mkdtemp(prefix="bench-"))
    print(f"load of the machine before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores", flush=True)
    rows: list[dict[str, Any]] = []
    try:
        with model_process("bench.peers.mock_model") as port:
            async with _peers(arguments.only, port, scratch) as peers:
                for round_number in range(arguments.rounds):
                    for at_once in arguments.at_once:
                        for name, peer in peers.items():
                            tasks = max(at_once, arguments.tasks if at_once > 1 else 3)
                            row = await _measure(name, peer, port, at_once, tasks, scratch)
                            rows.append({"round": round_number, **row})
                            print(json.dumps(rows[-1]), flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(rows, indent=1))
    _print(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tasks", type=int, default=8, help="tasks in a measurement with more than one at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=ROOT / "bench/results/side_by_side.json", metavar="FILE")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    asyncio.run(_main(parser.parse_args()))
