"""Time of POST /v1/tasks with fsync always, and what it is made of: the queue's part, the catalog's part, the rest.

    python -m bench.api_submit [--requests 500] [--concurrency 1 8] [--json FILE]

Starts a service of its own (no workers), prints a table.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from bench import processes

ROOT = Path(__file__).resolve().parent.parent


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values are."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds."""
    return {
        "p50_ms": round(percentile(seconds, 0.5) * 1000, 2),
        "p90_ms": round(percentile(seconds, 0.9) * 1000, 2),
        "p99_ms": round(percentile(seconds, 0.99) * 1000, 2),
        "mean_ms": round(statistics.fmean(seconds) * 1000, 2),
    }


async def post_tasks(url: str, token: str, *, requests: int, concurrency: int, pause_s: float = 0.0) -> list[float]:
    """Seconds of each request. `pause_s` between two of them, so that what a request leaves for later is not in the next."""
    body = json.dumps({"spec": {"repository": {"type": "none"}, "instruction": "Say hello."}})
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    taken: list[float] = []
    left = iter(range(requests))

    async def submit(http: httpx.AsyncClient) -> None:
        for _ in left:
            begun = time.perf_counter()
            response = await http.post("/v1/tasks", content=body)
            taken.append(time.perf_counter() - begun)
            response.raise_for_status()
            if pause_s:
                await asyncio.sleep(pause_s)

    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30, trust_env=False) as http:
        await asyncio.gather(*(submit(http) for _ in range(concurrency)))
    return taken


def fsync_seconds(folder: Path, rounds: int = 200) -> list[float]:
    """What one fsync of a small append costs on this disk: the floor of anything durable."""
    taken = []
    with (folder / "probe").open("ab", buffering=0) as file:
        for _ in range(rounds):
            file.write(b"x" * 512)
            begun = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - begun)
    return taken


def cli(*args: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `patchyard …`."""
    return subprocess.run([sys.executable, "-m", "patchyard.cli", *args], env=env, cwd=ROOT, capture_output=True, text=True)


def main() -> int:
    """Exit code 1 when the service does not start."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--concurrency", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pyb-") as folder:
        env = {**os.environ, "PATCHYARD_HOME": f"{folder}/h", "PATCHYARD_API_PORT": "0", "PYTHONPATH": str(ROOT)}
        started = cli("up", "--detach", "--workers", "0", "--json", env=env)
        if started.returncode != 0:
            print(started.stderr, file=sys.stderr)
            return 1
        try:
            url = json.loads(started.stdout)["url"]
            token = Path(folder, "h", "token").read_text().strip()
            asyncio.run(post_tasks(url, token, requests=50, concurrency=1))
            before = processes.cpu_of(Path(folder, "h"))
            report: dict[str, Any] = {
                "load": os.getloadavg()[0],
                "cpus": os.cpu_count(),
                "fsync": summary(fsync_seconds(Path(folder))),
                "spaced": summary(asyncio.run(post_tasks(url, token, requests=200, concurrency=1, pause_s=0.02))),
                "runs": {
                    str(count): summary(asyncio.run(post_tasks(url, token, requests=options.requests, concurrency=count)))
                    for count in options.concurrency
                },
            }
            count = 200 + options.requests * len(options.concurrency)
            used = {name: cpu.since(before[name]).own_s for name, cpu in processes.cpu_of(Path(folder, "h")).items()}
            report["cpu_ms_per_request"] = {name: round(1000 * seconds / count, 2) for name, seconds in used.items()}
        finally:
            cli("down", env=env)
    for name, row in [
        ("fsync", report["fsync"]),
        ("20 ms apart", report["spaced"]),
        *((f"{n} at once", run) for n, run in report["runs"].items()),
    ]:
        print(f"{name:<12} p50 {row['p50_ms']:>7} ms   p90 {row['p90_ms']:>7} ms   p99 {row['p99_ms']:>7} ms")
    print("CPU per request, ms:", report["cpu_ms_per_request"])
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
