"""Runs the real Codex CLI against a replay server: `codex exec` for one turn, `codex app-server` for a conversation."""

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from patchyard.protocol.tasks import HookEvent, HookSpec
from tests.conformance.codex_cli.cases import Case, Counted

VERSION = "0.159.2"
_CONFIG = """
model = "gpt-5.5"
model_provider = "replay"
[model_providers.replay]
name = "replay"
base_url = "{base_url}"
env_key = "REPLAY_KEY"
wire_api = "responses"
request_max_retries = 1
stream_max_retries = 2
supports_websockets = {sockets}
[features]
plugins = false
apps = false
remote_plugin = false
plugin_sharing = false
"""
_LINE_BYTES = 16 * 1024 * 1024
"""Longest message of the app-server: it shows whole outputs."""


def install() -> Path:
    """The CLI's native program, installed once per machine into a cache outside the repository; skips the test without it."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("npm and node are not on the PATH")
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "patchyard-tests" / f"codex-{VERSION}"
    if not (home / "node_modules").is_dir():
        home.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=home.parent))
        command = [npm, "install", "--prefix", str(fresh), "--no-audit", "--no-fund", f"@openai/codex@{VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        if done.returncode != 0:
            shutil.rmtree(fresh)
            pytest.skip(f"@openai/codex@{VERSION} can't be installed: {done.stderr[-300:]}")
        try:
            fresh.rename(home)
        except OSError:
            # Another run was faster.
            shutil.rmtree(fresh)
    return next(path for path in home.glob("node_modules/@openai/codex-*/vendor/*/**/codex") if path.is_file())


@dataclass(frozen=True)
class CodexHome:
    """Configuration and environment of one run below `folder`."""

    program: Path
    folder: Path
    base_url: str
    sockets: bool = False

    @property
    def workspace(self) -> Path:
        """Where the agent works."""
        return self.folder / "repository"

    def make(self) -> None:
        """Create the folders."""
        home, tools = self.folder / "home", self.folder / "bin"
        for path in (home, self.workspace, tools):
            path.mkdir(parents=True, exist_ok=True)
        (home / "config.toml").write_text(_CONFIG.format(base_url=self.base_url, sockets=str(self.sockets).lower()))
        # A CODEX_HOME below the temporary folder gets no helper aliases: the helper must be found on the PATH instead.
        (tools / "codex-linux-sandbox").symlink_to(self.program)

    def add_hooks(self, hooks: Mapping[HookEvent, Sequence[HookSpec]]) -> None:
        """Configure them."""
        with (self.folder / "home" / "config.toml").open("a") as config:
            for event, hook in ((event, hook) for event, several in hooks.items() for hook in several):
                matcher = f"matcher = {json.dumps(hook.matcher)}\n" if hook.matcher else ""
                config.write(f'[[hooks.{event.value}]]\n{matcher}[[hooks.{event.value}.hooks]]\ntype = "command"\n')
                config.write(f"command = {json.dumps(hook.command)}\n")

    def environment(self) -> dict[str, str]:
        """Nothing of ours gets in, and nothing gets out but to the loopback."""
        return {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "CODEX_HOME": str(self.folder / "home"),
            "REPLAY_KEY": "any",
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "NO_PROXY": "127.0.0.1",
        }

    def exec_command(self, prompt: str, *overrides: str) -> list[str]:
        """argv of one turn."""
        flags = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        return [str(self.program), "exec", *flags, *_overrides(overrides), prompt]


def _overrides(overrides: tuple[str, ...]) -> list[str]:
    return [word for override in overrides for word in ("-c", override)]


async def play_exec(home: CodexHome, case: Case) -> list[str]:
    """How the turns ended: one."""
    argv = home.exec_command(case.do[0].turn or "", *case.overrides)
    if case.hooks:
        argv[2:2] = ["--dangerously-bypass-hook-trust"]
        home.add_hooks(case.hooks)
    if case.answer_schema is not None:
        schema = home.folder / "schema.json"
        schema.write_text(json.dumps(case.answer_schema))
        argv[2:2] = ["--output-schema", str(schema)]
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=home.workspace,
        env=home.environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    ends = [
        kind for kind in (json.loads(line)["type"] for line in out.splitlines()) if kind in ("turn.completed", "turn.failed")
    ]
    assert process.returncode in (0, 1), err[-2000:]
    return [end.removeprefix("turn.") for end in ends]


async def play_conversation(home: CodexHome, case: Case, requests: Counted) -> list[str]:
    """How the turns ended, in order."""
    process = await asyncio.create_subprocess_exec(
        str(home.program),
        "app-server",
        *_overrides(case.overrides),
        cwd=home.workspace,
        env=home.environment(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=_LINE_BYTES,
    )
    server = _AppServer(process)
    reading = asyncio.create_task(server.read())
    try:
        return await _converse(server, home, case, requests)
    finally:
        process.kill()
        await process.wait()
        reading.cancel()
        await asyncio.wait([reading])


async def _converse(server: "_AppServer", home: CodexHome, case: Case, requests: Counted) -> list[str]:
    await server.ask("initialize", clientInfo={"name": "conformance", "title": "conformance", "version": "1"})
    server.tell("initialized")
    started = await server.ask("thread/start", cwd=str(home.workspace), approvalPolicy="never", sandbox="danger-full-access")
    thread = started["thread"]["id"]
    turn, turns = "", 0
    for action in case.do:
        await requests.reach(action.at_request)
        await server.commands.reach(action.at_command)
        if action.turn is not None:
            await server.turns.reach(turns)
            answer = await server.ask("turn/start", threadId=thread, input=_text(action.turn))
            turn, turns = answer["turn"]["id"], turns + 1
        elif action.steer is not None:
            await server.ask("turn/steer", threadId=thread, expectedTurnId=turn, input=_text(action.steer))
        elif action.interrupt is not None:
            await server.ask("turn/interrupt", threadId=thread, turnId=turn)
        else:
            await server.turns.reach(turns)
            await server.ask("thread/compact/start", threadId=thread)
            turns += 1
    await server.turns.reach(turns)
    return server.ends


def _text(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


class _AppServer:
    """Requests to `codex app-server` over its pipes, and what it says by itself."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to, self._from = process.stdin, process.stdout
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.commands = Counted()
        self.turns = Counted()
        self.ends: list[str] = []

    def tell(self, method: str, **params: Any) -> None:
        self._send({"method": method, "params": params})

    async def ask(self, method: str, **params: Any) -> Any:
        number = len(self._waiting) + 1
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._send({"id": number, "method": method, "params": params})
        answer = await future
        assert "result" in answer, f"{method}: {answer}"
        return answer["result"]

    async def read(self) -> None:
        while line := await self._from.readline():
            message = json.loads(line)
            if "method" not in message:
                self._waiting[message["id"]].set_result(message)
                continue
            params = message.get("params") or {}
            if message["method"] == "item/started" and params["item"]["type"] == "commandExecution":
                self.commands.add()
            elif message["method"] == "turn/completed":
                self.ends.append(params["turn"]["status"])
                self.turns.add()

    def _send(self, message: dict[str, Any]) -> None:
        self._to.write(json.dumps(message).encode() + b"\n")
