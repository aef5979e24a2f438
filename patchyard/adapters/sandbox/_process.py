"""A command in a box, seen from the host: bounded output, windowed stdin, the signal to its tree."""

import asyncio
import errno
import json
import os
from collections import deque
from collections.abc import Awaitable, Callable
from signal import SIGKILL

from patchyard.agent.ports import ExitStatus, PatchHandler, SandboxError, SandboxExecRequest
from patchyard.protocol.errors import ErrorCode

from ._frames import OUTPUT_WINDOW, STDIN_WINDOW, Frame, FromBox, Stage, ToBox, read_u32, u32
from .errors import BadCommand, BoxLost, BoxRefused

_STDIN_PART = 64 << 10


class StartFailure(Exception):
    """boxd could not start it: where and with which errno."""

    def __init__(self, stage: Stage, error: int) -> None:
        super().__init__(stage, error)
        self.stage = stage
        self.error = error


class BoxProcess:
    """The SandboxProcess of boxd. At most OUTPUT_WINDOW bytes of output wait here; the command blocks on more."""

    def __init__(
        self,
        ident: int,
        send: Callable[[ToBox, int, bytes], None],
        drain: Callable[[], Awaitable[None]],
        *,
        on_patch: PatchHandler | None = None,
    ) -> None:
        self.on_patch = on_patch
        self._ident = ident
        self._send = send
        self._drain = drain
        self._chunks: deque[bytes] = deque()
        self._ungranted = 0
        self._output_over = False
        self._gone = False
        self._killed = False
        self._lost = False
        self._begun = False
        self._failure: StartFailure | None = None
        self._status: ExitStatus | None = None
        self._stdin_open = True
        self._stdin_room = STDIN_WINDOW
        self._stdin_order = asyncio.Lock()
        self._news = asyncio.Event()

    # --- the port -----------------------------------------------------------------------------------------------------

    async def read(self) -> bytes:
        """See SandboxProcess."""
        await self._until(lambda: bool(self._chunks) or self._output_over)
        if not self._chunks:
            return b""
        chunk = self._chunks.popleft()
        self._ungranted += len(chunk)
        if self._ungranted >= OUTPUT_WINDOW // 2 and not self._output_over:
            self._send(ToBox.CREDIT, self._ident, u32(self._ungranted))
            self._ungranted = 0
        return chunk

    async def wait(self) -> ExitStatus:
        """See SandboxProcess."""
        await self._until(lambda: self._status is not None or self._lost)
        if self._status is None:
            raise BoxLost
        return self._status

    async def write(self, data: bytes, *, eof: bool = False) -> None:
        """See SandboxProcess."""
        async with self._stdin_order:
            view = memoryview(data)
            while view or eof:
                await self._until(lambda: self._stdin_room > 0 or not self._stdin_open)
                if not self._stdin_open:
                    if not view and not self._lost:
                        return  # it is closed already, as was asked
                    raise BoxLost() if self._lost else BadCommand("The command's standard input is closed.")
                part = view[: min(self._stdin_room, _STDIN_PART)]
                if part:
                    self._stdin_room -= len(part)
                    self._send(ToBox.STDIN, self._ident, bytes(part))
                    view = view[len(part) :]
                    await self._drain()
                if eof and not view:
                    self._stdin_open = False
                    self._send(ToBox.STDIN_END, self._ident, b"")
                    return

    async def resize(self, rows: int, columns: int) -> None:
        """See SandboxProcess."""
        if self._status is None and not self._lost:
            self._send(ToBox.RESIZE, self._ident, rows.to_bytes(2) + columns.to_bytes(2))

    async def kill(self, signal: int = 9) -> None:
        """See SandboxProcess."""
        self.signal(signal)

    def signal(self, number: int) -> None:
        """`kill` without a loop's help, for clean-up."""
        if not self._gone:
            self._killed = self._killed or number == SIGKILL
            self._send(ToBox.SIGNAL, self._ident, bytes([number]))

    @property
    def is_leaving(self) -> bool:
        """Whether it was killed, but some of its tree still count as processes of the box."""
        return self._killed and not self._gone

    async def gone(self) -> None:
        """Wait until nothing of its tree is left, or the box is lost."""
        await self._until(lambda: self._gone)

    # --- the box's side -------------------------------------------------------------------------------------------------

    async def begun(self) -> None:
        """Wait until the program runs. StartFailure, BoxLost."""
        await self._until(lambda: self._begun or self._failure is not None or self._lost)
        if self._failure:
            raise self._failure
        if not self._begun:
            raise BoxLost

    def on_frame(self, frame: Frame) -> bool:
        """Take a frame of this command; True when it was the last."""
        match frame.type:
            case FromBox.BEGUN:
                self._begun = True
            case FromBox.FAILED:
                self._failure = StartFailure(Stage(frame.payload[0]), read_u32(frame.payload, 1))
                self._end()
            case FromBox.OUTPUT:
                self._chunks.append(frame.payload)
            case FromBox.TAKEN:
                self._stdin_room += read_u32(frame.payload)
            case FromBox.UNUSABLE:
                self._stdin_open = False
            case FromBox.EXIT:
                self._status = _exit_status(frame.payload)
                self._stdin_open = False
            case FromBox.DONE:
                self._output_over = True
            case FromBox.GONE:
                self._end()
            case FromBox.HELLO | FromBox.PONG | FromBox.APPLY:
                pass
        self._wake()
        return self._gone

    def on_lost(self) -> None:
        """The box is gone."""
        self._lost = True
        self._end()
        self._wake()

    def _end(self) -> None:
        self._gone = self._output_over = True
        self._stdin_open = False

    def _wake(self) -> None:
        """Everybody who waits looks again; a new event for the next news."""
        self._news.set()
        self._news = asyncio.Event()

    async def _until(self, ready: Callable[[], bool]) -> None:
        while not ready():
            await self._news.wait()


def _exit_status(payload: bytes) -> ExitStatus:
    report = json.loads(payload)
    return ExitStatus(
        code=report["code"],
        signal=report["signal"] or None,
        timed_out=report["timed_out"],
        oom_killed=report["oom_killed"],
        wall_s=report["wall_us"] / 1e6,
        cpu_s=report["cpu_us"] / 1e6,
    )


def start_error(failure: StartFailure, request: SandboxExecRequest) -> SandboxError:
    """A start that failed, in words for the model."""
    name = errno.errorcode.get(failure.error, str(failure.error))
    reason = os.strerror(failure.error)
    match failure.stage:
        case Stage.CWD:
            return BadCommand(f"The working directory {request.cwd} can't be used: {reason}.", code=ErrorCode.NOT_FOUND)
        case Stage.EXEC if failure.error == errno.ENOENT:
            return BadCommand(f"{request.argv[0]}: there is no such program in the sandbox.", code=ErrorCode.NOT_FOUND)
        case Stage.EXEC:
            return BadCommand(f"{request.argv[0]} can't be executed: {reason}.")
        case Stage.CONFINE:
            return BoxRefused(f"The sandbox policy could not be put in force ({name}); the command did not run.")
        case Stage.LIMIT:
            return BadCommand(f"The limits of the command can't be set: {reason}.")
        case Stage.FORK | Stage.TTY:
            return BoxRefused(f"The sandbox can't start another process ({name}); end some that still run.")
        case Stage.SPEC:
            return BadCommand("The command can't be started: boxd did not understand the request.")
