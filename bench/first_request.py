"""From the submission to the model's first request, and to the first command's output: no warm pool, a repository never seen.

    python -m bench.first_request [--tasks 20] [--json FILE]

Tasks run one after the other, each on a repository of its own. The container and the first model request begin together.
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

from bench.figures import quantile
from bench.model_process import ask, model_process
from bench.peers.patchyard import image_id
from bench.peers.trajectory import make_repository
from bench.service import service, state
from patchyard.client import PatchyardClient
from patchyard.protocol.policies import ApprovalMode
from patchyard.protocol.tasks import GitSource, TaskSpec


async def _task(client: PatchyardClient, repository: Path, port: int) -> dict[str, float]:
    spec = TaskSpec(repository=GitSource(url=str(repository)), instruction="Look around.", approval=ApprovalMode.NEVER)
    began = time.monotonic_ns()
    created = await client.create_task(spec)
    accepted = time.monotonic_ns()
    async for _event in client.task_events(created.task_id):
        pass
    ended = time.monotonic_ns()
    first, second = (await asyncio.to_thread(ask, port, "/arrivals"))[created.thread_id]
    stamps = {"accepted_ms": accepted, "first_request_ms": first, "first_output_ms": second, "ended_ms": ended}
    return {name: (stamp - began) / 1e6 for name, stamp in stamps.items()}


async def measure(tasks: int, scratch: Path) -> dict[str, Any]:
    home = scratch / "h"
    scratch.chmod(0o755)
    with (
        model_process("bench.stamping_model", "--command", "true") as port,
        service(home, f"http://127.0.0.1:{port}/v1", SANDBOX_IMAGE=image_id()) as env,
    ):
        async with PatchyardClient(state(env)["url"], (home / "token").read_text().strip()) as client:
            rows = [await _task(client, make_repository(scratch / f"r{i}"), port) for i in range(tasks + 1)][1:]
    return {
        "tasks": tasks,
        "p50": {name: round(statistics.median(row[name] for row in rows), 1) for name in rows[0]},
        "p90": {name: round(quantile([row[name] for row in rows], 0.9), 1) for name in rows[0]},
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        result = asyncio.run(measure(options.tasks, scratch))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(json.dumps(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
