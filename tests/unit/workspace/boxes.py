"""A box whose three folders are somewhere else: commands run on this machine with the box's paths put in place."""

import asyncio
import os
import signal
from collections.abc import Sequence

from patchyard.adapters.workspace import Workspace
from patchyard.agent.ports import ExitStatus, FileContent, FileOperation, SandboxExecRequest


class FolderProcess:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def read(self) -> bytes:
        assert self._process.stdout is not None
        return await self._process.stdout.read(65536)

    async def wait(self) -> ExitStatus:
        code = await self._process.wait()
        return ExitStatus(code=code if code >= 0 else 128 - code)

    async def write(self, data: bytes, *, eof: bool = False) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        await self._process.stdin.drain()
        if eof:
            self._process.stdin.close()

    async def resize(self, rows: int, columns: int) -> None:
        raise NotImplementedError

    async def kill(self, signal: int = signal.SIGKILL) -> None:
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal)


class FolderBox:
    """Runs as the files' owner, like a real box."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._places = [
            ("/workspace", str(workspace.tree)),
            ("/gitdir", str(workspace.git_dir)),
            ("/mirror", str(workspace.mirror)),
        ]

    def _put(self, text: str) -> str:
        for inside, outside in self._places:
            text = text.replace(inside, outside) if not text.startswith(outside) else text
        return text

    async def spawn(self, request: SandboxExecRequest, *, on_patch: object = None) -> FolderProcess:
        process = await asyncio.create_subprocess_exec(
            *map(self._put, request.argv),
            cwd=self._put(request.cwd),
            env={name: self._put(value) for name, value in request.env.items()},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        return FolderProcess(process)

    async def read_file(self, path: str, *, policy: object, limit: int) -> FileContent | None:
        raise NotImplementedError

    async def apply_files(self, operations: Sequence[FileOperation], *, policy: object) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        pass
