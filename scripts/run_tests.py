"""Runs all tests: first those that need no network, in a namespace with loopback only, then the few that fetch packages."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from leftovers import present

ROOT = Path(__file__).resolve().parent.parent
PYTEST = [str(ROOT / ".venv/bin/python"), "-m", "pytest", "-q"]
MUST = "engine,redis,postgres,node,itself"


def _loopback_only() -> list[str] | None:
    """Command prefix that puts the rest of the command line into a network namespace with nothing but `lo`."""
    if sys.platform != "linux" or not shutil.which("unshare") or not shutil.which("ip"):
        return None
    prefix = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    prefix += ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    return prefix if subprocess.run([*prefix, "true"], capture_output=True).returncode == 0 else None


def _run(title: str, command: list[str], env: dict[str, str]) -> int:
    print(f"==> {title}", flush=True)
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **env}).returncode


def _settled(before: set[str]) -> set[str]:
    """What is there now and was not before; removals that are under way get a minute."""
    until = time.monotonic() + 60
    while (left := present() - before) and time.monotonic() < until:
        time.sleep(0.5)
    return left


def main() -> int:
    """0 when everything passed."""
    must = MUST if sys.platform == "linux" and os.geteuid() == 0 else "engine"
    prefix = _loopback_only()
    if prefix is None:
        print("note: no network namespace can be made here: the tests run with the machine's network")
    arguments = sys.argv[1:]
    tests = [*PYTEST, "--ignore=tests/architecture"]  # a part of `make check`
    before = present()
    codes = [
        _run(
            "Tests (loopback only)",
            [*(prefix or []), *tests, "-m", "not registry", *arguments],
            {"PATCHYARD_TEST_MUST": must, "PATCHYARD_TEST_LOOPBACK": "1" if prefix else "0"},
        ),
        _run(
            "Tests that fetch packages",
            [*tests, "-m", "registry", *arguments],
            {"PATCHYARD_TEST_MUST": must + ",registry"},
        ),
    ]
    print("==> Nothing is left behind")
    left = _settled(before)
    for line in sorted(left):
        print(f"left behind: {line}")
    return 1 if left else max(codes)


if __name__ == "__main__":
    sys.exit(main())
