"""A box whose commands and files are scripted. Fails on commands that nobody expected and on expectations that nobody met."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from patchyard.agent.hooks import SPLIT_SCRIPT
from patchyard.agent.ports import (
    DeleteFile,
    ExitStatus,
    FileContent,
    FileOperation,
    PatchCall,
    PatchHandler,
    PatchReply,
    SandboxError,
    SandboxExecRequest,
    WriteFile,
)
from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.policies import SandboxPolicy

from .clock import FakeClock


@dataclass
class Command:
    """An expected command. It writes `output`, waits `seconds`, and ends with `code`; `hangs`: only when it is killed."""

    script: str
    output: bytes = b""
    stderr: bytes = b""
    """Of a hook, whose error output is told apart; mixed into `output` for everything else."""
    code: int = 0
    seconds: float = 0
    later: bytes = b""
    """Written after the wait."""
    hangs: bool = False
    timed_out: bool = False
    patches: tuple[PatchCall, ...] = ()
    """What it hands to the apply_patch program, one after another, before its wait. Their texts become output, the last code its own."""
    error: str | None = None
    """It can't start, for this reason."""
    echoes: Mapping[bytes, bytes] = field(default_factory=dict)
    """What it answers to what is typed."""
    started: asyncio.Event = field(default_factory=asyncio.Event)


class ScriptedProcess:
    """SandboxProcess double."""

    def __init__(
        self, clock: FakeClock, command: Command, request: SandboxExecRequest, on_patch: PatchHandler | None = None
    ) -> None:
        self.replies: list[PatchReply] = []
        self._on_patch = on_patch
        self.command = command
        self.request = request
        self.killed_with: int | None = None
        self.stdin = b""
        self.stdin_closed = False
        self._clock = clock
        self._output: asyncio.Queue[bytes] = asyncio.Queue()
        self._ended = asyncio.Event()
        self._status = ExitStatus(command.code, timed_out=command.timed_out)
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        if self.command.output:
            self._output.put_nowait(self.command.output)
        for call in self.command.patches:
            reply = await self._on_patch(call) if self._on_patch else PatchReply(1, stderr="no handler\n")
            self.replies.append(reply)
            self._output.put_nowait((reply.stdout + reply.stderr).encode())
            self._status = ExitStatus(reply.code)
        if self.command.seconds:
            await self._clock.sleep(self.command.seconds)
        if self.command.hangs:
            await asyncio.Event().wait()
        if self.command.later:
            self._output.put_nowait(self.command.later)
        if self.request.argv[2:3] == (SPLIT_SCRIPT,):
            self._output.put_nowait(b"\n" + self.request.argv[3].encode() + self.command.stderr)
        self._end()

    def _end(self) -> None:
        if not self._ended.is_set():
            self._ended.set()
            self._output.put_nowait(b"")

    async def read(self) -> bytes:
        """See SandboxProcess."""
        return await self._output.get()

    async def wait(self) -> ExitStatus:
        """See SandboxProcess."""
        await self._ended.wait()
        return self._status

    async def write(self, data: bytes, *, eof: bool = False) -> None:
        """See SandboxProcess."""
        self.stdin += data
        self.stdin_closed = self.stdin_closed or eof
        if (answer := self.command.echoes.get(data)) is not None:
            self._output.put_nowait(answer)

    async def resize(self, rows: int, columns: int) -> None:
        """See SandboxProcess."""

    async def kill(self, signal: int = 9) -> None:
        """See SandboxProcess."""
        if self._ended.is_set():
            return
        self.killed_with = signal
        self._status = ExitStatus(128 + signal, signal=signal)
        self._task.cancel()
        self._end()


class ScriptedSandbox:
    """Sandbox double. Commands are met by their script, in any order among those that are expected."""

    def __init__(self, clock: FakeClock, commands: Sequence[Command] = (), files: Mapping[str, bytes] | None = None) -> None:
        self.requests: list[SandboxExecRequest] = []
        self.processes: list[ScriptedProcess] = []
        self.files = dict(files or {})
        """Contents by absolute path."""
        self.applied: list[tuple[tuple[FileOperation, ...], SandboxPolicy]] = []
        self.refuse_files: str | None = None
        """apply_files fails with this reason."""
        self.closed = False
        self._clock = clock
        self._expected = list(commands)

    async def spawn(self, request: SandboxExecRequest, *, on_patch: PatchHandler | None = None) -> ScriptedProcess:
        """See Sandbox."""
        self.requests.append(request)
        script = request.argv[-1]
        command = next((c for c in self._expected if c.script == script), None)
        if command is None:
            raise AssertionError(f"unexpected command: {script!r}; expected: {[c.script for c in self._expected]}")
        self._expected.remove(command)
        if command.error is not None:
            raise SandboxError(ErrorInfo.of(ErrorCode.SANDBOX_REFUSED, command.error))
        command.started.set()
        process = ScriptedProcess(self._clock, command, request, on_patch)
        self.processes.append(process)
        return process

    async def read_file(self, path: str, *, policy: SandboxPolicy, limit: int) -> FileContent | None:
        """See Sandbox."""
        data = self.files.get(path)
        return None if data is None else FileContent(data, 0o644)

    async def apply_files(self, operations: Sequence[FileOperation], *, policy: SandboxPolicy) -> None:
        """See Sandbox."""
        if self.refuse_files is not None:
            raise SandboxError(ErrorInfo.of(ErrorCode.SANDBOX_REFUSED, self.refuse_files))
        self.applied.append((tuple(operations), policy))
        for operation in operations:
            match operation:
                case WriteFile():
                    self.files[operation.path] = operation.data
                case DeleteFile():
                    del self.files[operation.path]

    async def close(self) -> None:
        """See Sandbox."""
        self.closed = True
        for process in self.processes:
            await process.kill()

    def assert_done(self) -> None:
        """Every expected command ran, and nothing runs any more."""
        if self._expected:
            raise AssertionError(f"commands that never ran: {[c.script for c in self._expected]}")
        running = [p.command.script for p in self.processes if not p._ended.is_set()]
        if running:
            raise AssertionError(f"commands that still run: {running}")


class ScriptedSource:
    """SandboxSource double around one box."""

    def __init__(
        self,
        clock: FakeClock,
        box: ScriptedSandbox,
        *,
        instructions: Sequence[tuple[str, str]] = (),
        start_s: float = 0,
        error: ErrorInfo | None = None,
        instructions_error: ErrorInfo | None = None,
        base_files: Mapping[str, bytes] | None = None,
    ) -> None:
        self.prepared = 0
        self.asked = 0
        self.folders: list[str] = []
        """Folders whose instructions were asked for."""
        self._clock = clock
        self._box = box
        self._instructions = instructions
        self._start_s = start_s
        self._error = error
        self._instructions_error = instructions_error
        self._base_files = dict(base_files or {})

    def prepare(self) -> None:
        """See SandboxSource."""
        self.prepared += 1

    async def get(self) -> ScriptedSandbox:
        """See SandboxSource."""
        self.asked += 1
        if self._start_s and self.asked == 1:
            await self._clock.sleep(self._start_s)
        if self._error is not None:
            raise SandboxError(self._error)
        return self._box

    async def instructions(self, folder: str = "") -> Sequence[tuple[str, str]]:
        """See SandboxSource."""
        if self._instructions_error is not None:
            raise SandboxError(self._instructions_error)
        self.folders.append(folder)
        return self._instructions

    async def base_file(self, path: str) -> bytes | None:
        """See SandboxSource."""
        return self._base_files.get(path)
