"""Codex 0.159.2: `exec` as a process each, and the app-server as one process for all."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.peers.meter import Meter
from bench.peers.trajectory import PROMPT

PACKAGE = "@openai/codex@0.159.2"


def install(cache: Path) -> Path:
    """The native binary, fetched once by npm. FileNotFoundError says why it can't be had."""
    if shutil.which("npm") is None:
        raise FileNotFoundError("npm is not on PATH")
    found = list(cache.glob("node_modules/@openai/codex-*/vendor/*/bin/codex"))
    if not found:
        run = subprocess.run(["npm", "install", "--silent", "--prefix", str(cache), PACKAGE], capture_output=True, text=True)
        found = list(cache.glob("node_modules/@openai/codex-*/vendor/*/bin/codex"))
        if not found:
            raise FileNotFoundError(f"npm could not install {PACKAGE}: {run.stderr[-200:]}")
    helpers = cache / "path"
    helpers.mkdir(exist_ok=True)
    link = helpers / "codex-linux-sandbox"
    if not link.exists():
        link.symlink_to(found[0])
    return found[0]


def host_python(cache: Path) -> Path:
    """Folder of a Python that has pytest and nothing else, like the boxes': the commands of Codex run on this machine."""
    folder = cache / "python"
    if not (folder / "done").exists():
        subprocess.run([sys.executable, "-m", "uv", "venv", "--quiet", "--clear", str(folder)], check=True)
        install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(folder / "bin/python"), "pytest"]
        subprocess.run(install, check=True)
        (folder / "done").touch()
    return folder / "bin"


def environment(home: Path, cache: Path, port: int) -> dict[str, str]:
    """A home of its own with the model server as the only provider, and no way out to anything else."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(
        'model = "gpt-5.5"\nmodel_provider = "bench"\n[features]\nplugins = false\napps = false\nremote_plugin = false\n'
        f'[model_providers.bench]\nname = "bench"\nbase_url = "http://127.0.0.1:{port}/v1"\nenv_key = "BENCH_KEY"\nwire_api = "responses"\n'
    )
    # Codex runs login shells: a clean home, so that this machine's own start-up files cost it nothing and hide no tool.
    (home / ".profile").write_text(f'PATH="{host_python(cache)}:$PATH"\n')
    dead = "http://127.0.0.1:9"
    path = f"{cache / 'path'}:{host_python(cache)}:{os.environ['PATH']}"
    outside = {"HTTPS_PROXY": dead, "HTTP_PROXY": dead, "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
    return {
        **os.environ,
        **outside,
        "CODEX_HOME": str(home),
        "HOME": str(home),
        "BENCH_KEY": "x",
        "PATH": path,
        "TMPDIR": str(home.parent),
    }


async def run_exec(binary: Path, env: dict[str, str], repositories: list[Path], at_once: int, meter: Meter) -> None:
    """A `codex exec` for each repository."""
    gate = asyncio.Semaphore(at_once)

    async def one(repository: Path) -> None:
        async with gate:
            command = [
                str(binary),
                "exec",
                "--skip-git-repo-check",
                "--sandbox",
                "workspace-write",
                "-C",
                str(repository),
                PROMPT,
            ]
            process = await asyncio.create_subprocess_exec(
                *command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            meter.watch(process.pid)
            await process.wait()

    await asyncio.gather(*(one(repository) for repository in repositories))


class _AppServer:
    """As much of a client as the benchmark needs: requests, and turn/completed by thread."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._next = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ended: dict[str, asyncio.Event] = {}

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(message).encode() + b"\n")

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._next += 1
        future = self._answers[self._next] = asyncio.get_running_loop().create_future()
        self.send({"id": self._next, "method": method, "params": params})
        return (await asyncio.wait_for(future, 120))["result"]

    def ended(self, thread: str) -> asyncio.Event:
        return self._ended.setdefault(thread, asyncio.Event())

    async def read(self) -> None:
        assert self.process.stdout
        while line := await self.process.stdout.readline():
            message = json.loads(line)
            if message.get("method") == "turn/completed":
                self.ended(message["params"]["threadId"]).set()
            elif "method" not in message and message.get("id") in self._answers:
                self._answers.pop(message["id"]).set_result(message)


async def run_app_server(binary: Path, env: dict[str, str], repositories: list[Path], at_once: int, meter: Meter) -> None:
    """One app-server, a thread for each repository."""
    process = await asyncio.create_subprocess_exec(
        str(binary), "app-server", env=env, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL, limit=1 << 26
    )
    meter.watch(process.pid)
    server = _AppServer(process)
    reader = asyncio.create_task(server.read())
    await server.request("initialize", {"clientInfo": {"name": "bench", "version": "1"}})
    server.send({"method": "initialized"})
    gate = asyncio.Semaphore(at_once)

    async def one(repository: Path) -> None:
        async with gate:
            policy = {"approvalPolicy": "never", "sandbox": "workspace-write"}
            started = await server.request("thread/start", {"cwd": str(repository), **policy})
            thread = started["thread"]["id"]
            await server.request("turn/start", {"threadId": thread, "input": [{"type": "text", "text": PROMPT}]})
            await asyncio.wait_for(server.ended(thread).wait(), 300)

    await asyncio.gather(*(one(repository) for repository in repositories))
    assert process.stdin
    process.stdin.close()
    await process.wait()
    reader.cancel()
