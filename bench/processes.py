"""CPU and memory of a running service's processes, by name (redis, api, worker-1, …), as its supervisor wrote them down."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from patchyard.cli.services.identity import read_pid_file

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cpu:
    """Seconds since the process started: its own, and those of children that ended (git)."""

    own_s: float
    children_s: float

    def since(self, before: "Cpu") -> "Cpu":
        """What was used after `before`."""
        return Cpu(self.own_s - before.own_s, self.children_s - before.children_s)


@dataclass(frozen=True)
class Memory:
    """MiB: all pages; those that are shared divided among their users; only those that nobody shares."""

    rss_mib: float
    pss_mib: float
    uss_mib: float


def pids(home: Path) -> dict[str, int]:
    """Name to pid; the supervisor itself is not among them."""
    found = {file.stem: read_pid_file(file) for file in (home / "run").glob("*.pid")}
    return {name: identity.pid for name, identity in sorted(found.items()) if identity is not None}


def cpu(pid: int) -> Cpu:
    """OSError when it is gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    user, system, children_user, children_system = (int(field) / _TICKS for field in fields[11:15])
    return Cpu(user + system, children_user + children_system)


def memory(pid: int) -> Memory:
    """OSError when it is gone."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    sizes = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines if line.endswith(" kB")}
    return Memory(sizes["Rss"], sizes["Pss"], sizes["Private_Clean"] + sizes["Private_Dirty"])


def cpu_of(home: Path) -> dict[str, Cpu]:
    """CPU of each process of the service."""
    return {name: cpu(pid) for name, pid in pids(home).items()}


def memory_of(home: Path) -> Mapping[str, Memory]:
    """Memory of each process of the service."""
    return {name: memory(pid) for name, pid in pids(home).items()}
