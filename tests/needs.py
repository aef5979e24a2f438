"""What tests need beyond Python, and whether this machine has it. Nothing is skipped silently: the run lists it."""

import glob
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path


def _engine() -> str | None:
    if shutil.which("docker") is None:
        return "no docker program"
    run = subprocess.run(["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, text=True)
    return None if run.returncode == 0 else "no Docker engine answers"


def _redis() -> str | None:
    return None if shutil.which("redis-server") else "no redis-server on PATH"


def _postgres() -> str | None:
    return None if glob.glob("/usr/lib/postgresql/*/bin/initdb") else "no PostgreSQL server programs"


def _node() -> str | None:
    return None if shutil.which("node") and shutil.which("npm") else "no node and npm on PATH"


def _registry() -> str | None:
    return "this run has no network" if loopback_only() else None


def _netns() -> str | None:
    return None if os.geteuid() == 0 and shutil.which("ip") else "needs root and iproute2"


NEEDS: dict[str, Callable[[], str | None]] = {
    "engine": _engine,
    "redis": _redis,
    "postgres": _postgres,
    "node": _node,
    "registry": _registry,
    "netns": _netns,
}


@cache
def missing(need: str) -> str | None:
    """Why a need can't be met here; None when it is met."""
    return NEEDS[need]()


def loopback_only() -> bool:
    """Whether this process is in a network namespace that holds nothing but `lo`."""
    links = Path("/sys/class/net")
    return links.is_dir() and os.environ.get("PATCHYARD_TEST_LOOPBACK") == "1"
