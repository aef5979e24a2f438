"""The commands of a thread: running ones, those that became sessions, and the pairing of their items."""

import asyncio
import codecs
import random
from collections.abc import Callable
from typing import Protocol

from patchyard.agent.approvals import first_of
from patchyard.agent.journal import Journal
from patchyard.agent.ports import (
    Clock,
    ExitStatus,
    PatchCall,
    PatchReply,
    Sandbox,
    SandboxError,
    SandboxExecRequest,
    SandboxProcess,
)
from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.events import ExecOutputDelta, ItemCompleted
from patchyard.protocol.items import CommandExecutionItem, ItemStatus

from .output import OutputBuffer

_ITEM_OUTPUT_BYTES = 128 * 1024
"""Most output that is kept for the item that people see."""
_SESSION_IDS = range(1_000, 100_000)
_RECENT = 8
"""The commands used last, which are never stopped to make room."""
_OVERTIME_S = 2.0
"""What the box may take beyond a command's time limit before the core stops the command itself."""


class CommandPatches(Protocol):
    """Answers the apply_patch program in a command's tree; ends with the command. Implemented by agent.patches."""

    async def __call__(self, call: PatchCall) -> PatchReply:
        """See PatchHandler."""
        ...

    def close(self) -> None:
        """No more of them, at once."""
        ...

    async def closed(self) -> None:
        """Wait until the last one is over."""
        ...


class RunningCommand:
    """A command, its output that nobody has read yet, and its item."""

    def __init__(
        self, session_id: int, item: CommandExecutionItem, process: SandboxProcess, *, tty: bool, started: float
    ) -> None:
        self.session_id = session_id
        self.item = item
        self.process = process
        self.tty = tty
        self.started = started
        self.unread = OutputBuffer()
        self.whole = OutputBuffer(_ITEM_OUTPUT_BYTES)
        self.ended = asyncio.Event()
        """Set when it runs no more."""
        self.completed = False
        """Its item was completed."""
        self.status: ExitStatus | None = None
        self.error: SandboxError | None = None
        self.killed = False
        self.timed_out = False
        """The core stopped it at its time limit, since the box had not."""
        self.kept = False
        """It goes on after its turn, because a person asked for that."""
        self.used = 0
        """Counts up with every use of any command."""
        self.seen = False
        """The model was told about it."""
        self.patches: CommandPatches | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """Whether it still runs."""
        return not self.ended.is_set()


class ProcessTable:
    """All commands of a thread. Each one's item is completed exactly once, when it ends or is given up."""

    def __init__(self, journal: Journal, clock: Clock, *, limit: int, output_tokens: int) -> None:
        self._journal = journal
        self._clock = clock
        self._limit = limit
        self._output_tokens = output_tokens
        self._commands: dict[int, RunningCommand] = {}
        self._starting = 0
        self._uses = 0

    def get(self, session_id: int) -> RunningCommand | None:
        """A command that runs, or whose end nobody has read yet. Counts as a use of it."""
        command = self._commands.get(session_id)
        if command is not None:
            self._use(command)
        return command

    @property
    def crowded(self) -> int | None:
        """Number of commands when nearly as many run as may, else None."""
        running = sum(c.running for c in self._commands.values())
        return running if running >= max(self._limit - 4, 1) and self._limit > _RECENT else None

    async def make_room(self, *, grace_s: float) -> bool:
        """Let one more start: forget what ended unread, then stop what was used longest ago. False: all are in use."""
        while len(self._commands) + self._starting >= self._limit:
            by_use = sorted(self._commands.values(), key=lambda c: c.used)
            ended = next((c for c in by_use if not c.running), None)
            if ended is not None:
                self.forget(ended)
            elif len(by_use) > _RECENT:
                await self.kill(by_use[0], grace_s=grace_s)
            else:
                return False
        return True

    async def start(
        self,
        item: CommandExecutionItem,
        box: Sandbox,
        request: SandboxExecRequest,
        *,
        patches: CommandPatches | None = None,
    ) -> RunningCommand:
        """Start a command whose item is open. SandboxError when it can't start; the item stays open then."""
        self._starting += 1
        try:
            process = await box.spawn(request, on_patch=patches)
        finally:
            self._starting -= 1
        session_id = random.choice(_SESSION_IDS)  # noqa: S311 - a name, not a secret
        while session_id in self._commands:
            session_id = random.choice(_SESSION_IDS)  # noqa: S311
        command = RunningCommand(session_id, item, process, tty=request.tty, started=self._clock.monotonic())
        command.patches = patches
        self._commands[session_id] = command
        self._use(command)
        command.task = asyncio.create_task(self._pump(command, limit_s=request.limits.wall_time_s))
        if not request.tty:
            try:
                await process.write(b"", eof=True)
            except SandboxError:
                pass  # It has ended already; that is seen where its end is read.
        return command

    def _use(self, command: RunningCommand) -> None:
        self._uses += 1
        command.used = self._uses

    def forget(self, command: RunningCommand) -> None:
        """Its end was read."""
        self._commands.pop(command.session_id, None)

    async def kill(self, command: RunningCommand, *, grace_s: float) -> None:
        """Kill its process tree and complete its item. Never raises."""
        command.killed = True
        if command.patches is not None:
            command.patches.close()
        try:
            await first_of(self._kill(command), self._clock.sleep(grace_s))
        finally:
            self.forget(command)
            if command.task is not None and not command.task.done():
                command.task.cancel()
            self._complete(command, ItemStatus.INTERRUPTED)

    @property
    def running(self) -> bool:
        """Whether any command runs."""
        return any(c.running for c in self._commands.values())

    @property
    def kept_running(self) -> bool:
        """Whether a command runs that outlives its turn."""
        return any(c.kept and not c.ended.is_set() for c in self._commands.values())

    async def kept_ended(self) -> None:
        """Wait until no kept command runs any more."""
        while waiting := [c for c in self._commands.values() if c.kept and not c.ended.is_set()]:
            await waiting[0].ended.wait()

    def keep_sessions(self) -> None:
        """Let commands that became sessions go on after the turn. Their items end here, with what they wrote so far."""
        for command in self._commands.values():
            if command.running and command.seen:
                command.kept = True
                self._complete(command, ItemStatus.INTERRUPTED)

    async def kill_all(self, *, grace_s: float, kept: bool = True) -> None:
        """Kill everything that runs; `kept=False` spares what outlives its turn."""
        doomed = [c for c in self._commands.values() if kept or not c.kept]
        running = [c for c in doomed if not c.ended.is_set()]
        await asyncio.gather(*(self.kill(command, grace_s=grace_s) for command in running))
        for command in doomed:
            self.forget(command)

    async def kill_kept(self, *, grace_s: float) -> None:
        """Kill what outlived its turn."""
        kept = [c for c in self._commands.values() if c.kept]
        await asyncio.gather(*(self.kill(command, grace_s=grace_s) for command in kept))

    async def _kill(self, command: RunningCommand) -> None:
        try:
            await command.process.kill()
        except SandboxError:
            return
        if command.patches is not None:
            await command.patches.closed()
        await command.ended.wait()

    async def _pump(self, command: RunningCommand, *, limit_s: float | None) -> None:
        watchdog = asyncio.create_task(self._enforce(command, limit_s)) if limit_s is not None else None
        try:
            await self._follow(command)
        finally:
            if watchdog is not None:
                watchdog.cancel()

    async def _enforce(self, command: RunningCommand, limit_s: float) -> None:
        """End a command that is over its time although the box should have ended it."""
        await self._clock.sleep(limit_s + _OVERTIME_S)
        command.timed_out = True
        await first_of(self._kill(command), self._clock.sleep(_OVERTIME_S))
        if command.running:
            lost = ErrorInfo.of(ErrorCode.SANDBOX_LOST, "it was over its time limit and the sandbox could not end it.")
            command.error = SandboxError(lost)
            if command.task is not None:
                command.task.cancel()
            self._complete(command, ItemStatus.FAILED)

    async def _follow(self, command: RunningCommand) -> None:
        show = self._shower(command.item.id)
        try:
            while data := await command.process.read():
                command.unread.add(data)
                command.whole.add(data)
                show(data, False)
            show(b"", True)
            command.status = await command.process.wait()
        except SandboxError as error:
            command.error = error
        failed = command.error is not None or command.status is None or command.status.code != 0
        status = ItemStatus.INTERRUPTED if command.killed else ItemStatus.FAILED if failed else ItemStatus.COMPLETED
        self._complete(command, status)

    def _complete(self, command: RunningCommand, status: ItemStatus) -> None:
        if not command.kept or command.completed:
            command.ended.set()
        if command.completed:
            return
        command.completed = True
        if command.patches is not None:
            command.patches.close()  # what its daemons do later belongs to no turn
        item = command.item.model_copy(
            update={
                "status": status,
                "aggregated_output": command.whole.take().shaped(self._output_tokens),
                "process_id": command.session_id if command.kept and not command.ended.is_set() else None,
                "exit_code": command.status.code if command.status else None,
                "duration_ms": round((self._clock.monotonic() - command.started) * 1000),
            }
        )
        if item.id in self._journal.open_items:
            self._journal.post_soon(ItemCompleted(item=item, completed_at=self._clock.now_ms()))  # its output follows

    def _shower(self, item_id: str) -> Callable[[bytes, bool], None]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        stream = self._journal.redactor.stream()

        def show(data: bytes, final: bool) -> None:
            text = stream.feed(decoder.decode(data, final).replace("\0", "")) + (stream.end() if final else "")
            if text:
                self._journal.live(ExecOutputDelta(item_id=item_id, delta=text))

        return show
