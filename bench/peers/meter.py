"""CPU of the whole machine and memory of a process tree while something runs."""

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path


def busy_seconds() -> float:
    """CPU seconds that all processors spent working since boot (user, nice, system, irq, softirq)."""
    fields = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (fields[0] + fields[1] + fields[2] + fields[5] + fields[6]) / os.sysconf("SC_CLK_TCK")


def tree(root: int) -> set[int]:
    """A process and all its descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue
    found = {root}
    grew = True
    while grew:
        more = {pid for pid, parent in parents.items() if parent in found and pid not in found}
        found |= more
        grew = bool(more)
    return found


def pss_kib(pids: set[int]) -> int:
    """Proportional set size of some processes, KiB."""
    total = 0
    for pid in pids:
        try:
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
        except OSError:
            continue
    return total


@dataclass
class Usage:
    """What a run took."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_pss_mib: float = 0.0


class Meter:
    """Measures between `with` and its end; `watch` adds roots of process trees."""

    def __init__(self) -> None:
        self.usage = Usage()
        self._roots: set[int] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def watch(self, pid: int) -> None:
        """Count this process and its descendants."""
        self._roots.add(pid)

    def _sample(self) -> None:
        while not self._stop.wait(0.4):
            pids: set[int] = set()
            for root in list(self._roots):
                pids |= tree(root)
            self.usage.peak_pss_mib = max(self.usage.peak_pss_mib, pss_kib(pids) / 1024)

    def __enter__(self) -> "Meter":
        self._wall, self._cpu = time.monotonic(), busy_seconds()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.usage.wall_s = time.monotonic() - self._wall
        self.usage.cpu_s = busy_seconds() - self._cpu
        self._stop.set()
        self._thread.join()
