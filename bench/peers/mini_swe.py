"""mini-swe-agent: its agent and its Docker environment, as its batch runner joins them (a thread pool, a container each)."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from bench.peers.meter import Meter
from bench.peers.trajectory import PROMPT

PACKAGE = "mini-swe-agent==2.4.6"

# Runs inside the peer's own environment.
_DRIVER = """
import json, sys, logging
from concurrent.futures import ThreadPoolExecutor
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.docker import DockerEnvironment
from minisweagent.models.litellm_model import LitellmModel
logging.disable(logging.CRITICAL)
job = json.loads(sys.argv[1])
def one(repository):
    run_args = ["--rm", "--network", "none", "--entrypoint", "", "-v", repository + ":/workspace"]
    env = DockerEnvironment(image=job["image"], cwd="/workspace", run_args=run_args, interpreter=["bash", "-c"])
    kwargs = {"api_base": job["base"], "api_key": "x", "extra_headers": {"x-task": repository}}
    model = LitellmModel(model_name="openai/bench", model_kwargs=kwargs, cost_tracking="ignore_errors")
    DefaultAgent(model, env, system_template="You fix bugs.", instance_template="{{task}}", cost_limit=0).run(job["prompt"])
    env.cleanup()
with ThreadPoolExecutor(job["at_once"]) as pool:
    list(pool.map(one, job["repositories"]))
"""


def install(cache: Path) -> Path:
    """Python of the peer's environment. FileNotFoundError says why it can't be had."""
    python = cache / "bin/python"
    if not (cache / "done").exists():
        subprocess.run([sys.executable, "-m", "uv", "venv", "--quiet", "--clear", str(cache)], check=True)
        run = subprocess.run(
            [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python), PACKAGE],
            capture_output=True,
            text=True,
        )
        if run.returncode:
            raise FileNotFoundError(f"could not install {PACKAGE}: {run.stderr[-200:]}")
        (cache / "done").touch()
    return python


async def run(python: Path, image: str, port: int, repositories: list[Path], at_once: int, meter: Meter) -> None:
    """A container for each repository."""
    job = {
        "image": image,
        "base": f"http://127.0.0.1:{port}/v1",
        "prompt": PROMPT,
        "at_once": at_once,
        "repositories": [str(repository) for repository in repositories],
    }
    process = await asyncio.create_subprocess_exec(
        str(python),
        "-c",
        _DRIVER,
        json.dumps(job),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(python.parent),
            "MSWEA_SILENT_STARTUP": "1",
            "NO_PROXY": "127.0.0.1",
        },
    )
    meter.watch(process.pid)
    _, stderr = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"mini-swe-agent failed: {stderr.decode()[-500:]}")


def remove_leftovers() -> None:
    """Its containers ignore TERM and outlive it; they are counted first, then removed here."""
    names = ["docker", "ps", "-aq", "--filter", "name=^minisweagent-"]
    left = subprocess.run(names, capture_output=True, text=True).stdout.split()
    if left:
        subprocess.run(["docker", "rm", "-f", *left], stdout=subprocess.DEVNULL)
