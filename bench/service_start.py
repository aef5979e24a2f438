"""Time and CPU of `patchyard up --detach` and `down`, on a new home and on one that was up before.

python -m bench.service_start [--rounds 5] [--json FILE]
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import processes
from bench.service import CLI, ROOT, state


def _run(env: dict[str, str], *arguments: str) -> float:
    began = time.monotonic()
    subprocess.run([*CLI, *arguments], env=env, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def _up_and_down(env: dict[str, str], home: Path) -> dict[str, Any]:
    up = _run(env, "up", "--detach")
    spent = {name: cpu.own_s for name, cpu in processes.cpu_of(home).items()}
    spent["supervisor"] = processes.cpu(state(env)["pid"]).own_s
    weighed = {name: round(memory.pss_mib, 1) for name, memory in processes.memory_of(home).items()}
    weighed["supervisor"] = round(processes.memory(state(env)["pid"]).pss_mib, 1)
    return {"up_s": round(up, 2), "cpu_s": spent, "pss_mib": weighed, "down_s": round(_run(env, "down"), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: dict[str, list[dict[str, Any]]] = {"new": [], "again": []}
    for _ in range(options.rounds):
        home = Path(tempfile.mkdtemp(prefix="pyb-"))
        env = {**os.environ, "PATCHYARD_HOME": str(home), "PATCHYARD_API_PORT": "0", "PYTHONPATH": str(ROOT)}
        try:
            for kind in rows:
                rows[kind].append(_up_and_down(env, home))
                print(kind, json.dumps(rows[kind][-1]), flush=True)
        finally:
            shutil.rmtree(home, ignore_errors=True)
    medians = {f"{kind}_up_s": statistics.median(row["up_s"] for row in found) for kind, found in rows.items()}
    result = {
        **medians,
        "down_s": statistics.median(r["down_s"] for r in rows["again"]),
        "rows": rows,
        "load": os.getloadavg()[0],
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
