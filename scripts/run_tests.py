"""Runs all tests: first those that need no network, in a namespace with loopback only, then the few that fetch packages."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTEST = [str(ROOT / ".venv/bin/python"), "-m", "pytest", "-q"]
MUST = "engine,redis,postgres,node"


def _loopback_only() -> list[str] | None:
    """Command prefix that puts the rest of the command line into a network namespace with nothing but `lo`."""
    if sys.platform != "linux" or not shutil.which("unshare") or not shutil.which("ip"):
        return None
    prefix = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    prefix += ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    return prefix if subprocess.run([*prefix, "true"], capture_output=True).returncode == 0 else None


def _run(title: str, command: list[str], env: dict[str, str]) -> int:
    print(f"==> {title}", flush=True)
    images = os.environ.get("PATCHYARD_HOME", str(ROOT / ".patchyard"))  # where the set-up recorded the image of the boxes
    return subprocess.run(command, cwd=ROOT, env={"PATCHYARD_TEST_IMAGE_HOME": images, **os.environ, **env}).returncode


def main() -> int:
    """0 when everything passed."""
    must = MUST if sys.platform == "linux" and os.geteuid() == 0 else "engine"
    prefix = _loopback_only()
    if prefix is None:
        print("note: no network namespace can be made here: the tests run with the machine's network")
    arguments = sys.argv[1:]
    codes = [
        _run(
            "Tests (loopback only)",
            [*(prefix or []), *PYTEST, "-m", "not registry", *arguments],
            {"PATCHYARD_TEST_MUST": must, "PATCHYARD_TEST_LOOPBACK": "1" if prefix else "0"},
        ),
        _run("Tests that fetch packages", [*PYTEST, "-m", "registry", *arguments], {"PATCHYARD_TEST_MUST": must + ",registry"}),
        _run("Nothing is left behind", [str(ROOT / ".venv/bin/python"), "scripts/leftovers.py"], {}),
    ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
