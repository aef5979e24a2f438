"""A Patchyard of its own for a demo or a benchmark: own home, own port, a model server of choice, stopped at the end."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.released_bugs import Bug

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / ".patchyard"
CLI = (sys.executable, "-m", "patchyard.cli")
"""`patchyard`, from this source tree also where it is not installed."""


@contextmanager
def replay_model(script: Path) -> Iterator[str]:
    """A replay server with this script; its base URL. SystemExit at the end when a request broke its rules."""
    command = [sys.executable, "-m", "patchyard.replay", "serve", "--script", str(script), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        said, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"error: the replay model saw requests that break its rules:\n{said}")


def sandbox_image() -> str:
    """Id of the sandbox image that the set-up recorded; the setting PATCHYARD_SANDBOX_IMAGE comes first."""
    if "PATCHYARD_SANDBOX_IMAGE" in os.environ:
        return os.environ["PATCHYARD_SANDBOX_IMAGE"]
    return str(json.loads((STATE / "images.lock.json").read_text())["base"]["id"])


@contextmanager
def service(home: Path, model_url: str, **settings: str) -> Iterator[dict[str, str]]:
    """`patchyard up` with a home and a free port of its own; the environment for its commands."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = {
        "HOME": str(home),
        "API_PORT": str(port),
        "MODEL_BASE_URL": model_url,
        "MODEL_API_KEY": "replay",
        "SANDBOX_IMAGE": sandbox_image(),
        **settings,
    }
    if "SSL_CERT_FILE" in os.environ:  # a machine behind a proxy with a certificate of its own: the set-up phase needs it too
        own["SETUP_CA_FILE"] = os.environ["SSL_CERT_FILE"]
    env = {**os.environ, **{f"PATCHYARD_{name}": value for name, value in own.items()}}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    subprocess.run([*CLI, "up", "--detach"], env=env, check=True, stdin=subprocess.DEVNULL)
    try:
        yield env
    finally:
        subprocess.run([*CLI, "down"], env=env, check=True, stdin=subprocess.DEVNULL)


def state(env: Mapping[str, str]) -> dict[str, Any]:
    """What the supervisor of a running service wrote down: its url and pid, …"""
    return dict(json.loads(Path(env["PATCHYARD_HOME"], "run/service.json").read_text()))


def fix(bug: Bug, repository: Path, overlay: Path, patch: Path, env: dict[str, str], *, quiet: bool = False) -> dict[str, Any]:
    """Run `patchyard fix` as a user does; the task as the API shows it afterwards."""
    command = [*CLI, "fix", str(repository), "--issue", bug.instruction, "--verify", bug.verify]
    command += ["--verify-overlay", str(overlay), "--output", str(patch)]
    if bug.setup:
        command += ["--setup", bug.setup]
    subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL if quiet else None)
    listed = subprocess.run([*CLI, "tasks", "list", "--json"], env=env, check=True, capture_output=True, text=True)
    return dict(json.loads(listed.stdout)["data"][0])
