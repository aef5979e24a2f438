"""`true` through boxd, `docker exec` and the engine's exec API, interleaved in one run; prints JSON.

Wall time per operation, and CPU of all that it costs: this process and its children, the engine's processes, the box's
cgroup. Other users of the same engine add to the engine's share: run it on a quiet one.
"""

import argparse
import asyncio
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from patchyard.adapters.sandbox import BoxLabels, BoxSpec, DockerBoxes  # noqa: E402
from patchyard.adapters.sandbox._engine import EngineClient  # noqa: E402
from patchyard.agent.ports import SandboxExecRequest  # noqa: E402
from patchyard.protocol.policies import WorkspaceWrite  # noqa: E402

TICK = os.sysconf("SC_CLK_TCK")
ENGINE_PROCESSES = ("dockerd", "containerd", "containerd-shim", "runc")
LABELS = BoxLabels(tenant="bench", thread="bench", turn="bench", worker=f"bench-{os.getpid()}", kind="bench")


class Sample(NamedTuple):
    """One operation."""

    wall_s: float
    cpu_s: float


def engine_cpu() -> float:
    """CPU seconds of the engine's processes, children that ended included (runc is one of them)."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, fields = stat.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        if name.startswith(ENGINE_PROCESSES):
            ticks += sum(map(int, fields.split()[11:15]))
    return ticks / TICK


def own_cpu() -> float:
    """CPU seconds of this process and of its children that ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def box_cpu(container: str) -> float:
    """CPU seconds of the container's cgroup (v1 or v2); 0 where it is not to be found."""
    v1 = Path(f"/sys/fs/cgroup/cpuacct/docker/{container}/cpuacct.usage")
    if v1.is_file():
        return int(v1.read_text()) / 1e9
    for v2 in Path("/sys/fs/cgroup").glob(f"**/*{container}*/cpu.stat"):
        return int(v2.read_text().split()[1]) / 1e6
    return 0.0


def quantile(values: list[float], share: float) -> float:
    """Value at a share of the sorted list."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


async def measure(docker_host: str, image: str, rounds: int, batch: int) -> dict[str, list[Sample]]:
    """Batches of each way in turn, so that a change of the machine's speed hits all alike."""
    boxes = DockerBoxes(docker_host, concurrency=2)
    engine = EngineClient(docker_host)
    policy = WorkspaceWrite()
    box = await boxes.start(BoxSpec(image=image, labels=LABELS, policy=policy))
    container = next(iter(boxes._running))
    request = SandboxExecRequest(argv=("true",), cwd="/workspace", env={}, policy=policy)

    async def boxd() -> None:
        process = await box.spawn(request)
        while await process.read():
            pass
        assert (await process.wait()).code == 0

    async def cli() -> None:
        command = ("docker", "-H", docker_host, "exec", container, "true")
        assert await (await asyncio.create_subprocess_exec(*command)).wait() == 0

    async def api() -> None:
        body = {"Cmd": ["true"], "AttachStdout": True, "AttachStderr": True}
        made = await engine.call("POST", f"/containers/{container}/exec", body=body)
        await engine.call("POST", f"/exec/{made.body['Id']}/start", body={"Detach": False, "Tty": False})
        assert (await engine.call("GET", f"/exec/{made.body['Id']}/json")).body["ExitCode"] == 0

    ways: dict[str, Callable[[], Awaitable[None]]] = {"boxd": boxd, "docker exec (CLI)": cli, "exec API": api}
    samples: dict[str, list[Sample]] = {name: [] for name in ways}
    try:
        for way in ways.values():
            await way()
        for _ in range(rounds):
            for name, way in ways.items():
                count = batch if name != "boxd" else batch * 10  # the clock of CPU accounting is coarse
                before = engine_cpu() + own_cpu() + box_cpu(container)
                walls = []
                for _ in range(count):
                    started = time.perf_counter()
                    await way()
                    walls.append(time.perf_counter() - started)
                cpu = (engine_cpu() + own_cpu() + box_cpu(container) - before) / count
                samples[name] += [Sample(wall, cpu) for wall in walls]
    finally:
        await boxes.close()
    return samples


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--docker-host", default=os.environ.get("PATCHYARD_DOCKER_HOST", "unix:///var/run/docker.sock"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    build = [sys.executable, ROOT / "sandbox_images/build.py", "--docker-host", options.docker_host]
    image = subprocess.run(build, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    load = os.getloadavg()[0]
    samples = asyncio.run(measure(options.docker_host, image, options.rounds, options.batch))
    rows = {
        name: {
            "count": len(taken),
            "p50_ms": round(quantile([one.wall_s for one in taken], 0.5) * 1000, 2),
            "p95_ms": round(quantile([one.wall_s for one in taken], 0.95) * 1000, 2),
            "cpu_ms": round(statistics.mean(one.cpu_s for one in taken) * 1000, 2),
        }
        for name, taken in samples.items()
    }
    ratio = rows["docker exec (CLI)"]["cpu_ms"] / rows["boxd"]["cpu_ms"]
    result = {
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "load": round(load, 2)},
        "ways": rows,
        "cpu_ratio_cli_to_boxd": round(ratio, 1),
        "cpu_ratio_api_to_boxd": round(rows["exec API"]["cpu_ms"] / rows["boxd"]["cpu_ms"], 1),
        "goals": {"boxd p50 <= 4 ms": rows["boxd"]["p50_ms"] <= 4, "CPU at least 20x less than docker exec": ratio >= 20},
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
