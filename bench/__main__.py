"""Runs benchmarks and compares them with their goals.

    python -m bench                 list them
    python -m bench NAME… [--quick] run some (`all`: every one), each in a process of its own

Raw numbers go to bench/results/<name>.json. What they meant on which machine is written down in bench/RESULTS.md.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from bench.catalogue import BENCHMARKS, Benchmark
from bench.figures import Figure

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"


def show_list() -> None:
    """Names and what they measure."""
    for benchmark in BENCHMARKS:
        print(f"{benchmark.name:<18} {benchmark.about}")


def run(benchmark: Benchmark, *, quick: bool) -> bool:
    """Run it and print its table. False when it could not run."""
    RESULTS.mkdir(exist_ok=True)
    raw = RESULTS / f"{benchmark.name}.json"
    raw.unlink(missing_ok=True)
    command = [sys.executable, "-m", f"bench.{benchmark.name}", *(benchmark.quick if quick else ()), "--json", str(raw)]
    print(f"\n== {benchmark.name}: {benchmark.about}\n{' '.join(command[1:])}", flush=True)
    before = os.getloadavg()[0]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode or not raw.exists():
        print(f"{done.stdout[-2000:]}\n{benchmark.name} ended with exit code {done.returncode}", flush=True)
        return False
    print(f"load before {before:.2f}, after {os.getloadavg()[0]:.2f}, {os.cpu_count()} CPUs, {platform.machine()}")
    show(benchmark.figures(json.loads(raw.read_text())))
    return True


def show(figures: list[Figure]) -> None:
    """The table: what, goal, measured, met."""
    print(f"  {'what':<58}{'goal':>12}{'measured':>12} unit    met")
    for figure in figures:
        goal = "" if figure.goal is None else f"{'>=' if figure.at_least else '<='} {figure.goal:g}"
        met = {None: "", True: "yes", False: "NO"}[figure.met]
        print(f"  {figure.what:<58}{goal:>12}{figure.measured:>12.4g} {figure.unit:<8}{met}", flush=True)


def main() -> int:
    """0: everything ran (met or not: a loaded machine is no failure); 1: something could not run."""
    names = [benchmark.name for benchmark in BENCHMARKS]
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="`all`, or: " + ", ".join(names))
    parser.add_argument("--quick", action="store_true", help="fewer rounds: shows that it works, measures little")
    options = parser.parse_args()
    if unknown := set(options.names) - {*names, "all"}:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    if not options.names:
        show_list()
        return 0
    chosen = [b for b in BENCHMARKS if "all" in options.names or b.name in options.names]
    return 0 if sum(not run(benchmark, quick=options.quick) for benchmark in chosen) == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
