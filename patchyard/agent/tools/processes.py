"""The commands of a thread: running ones, those that became sessions, and the pairing of their items."""

import asyncio
import codecs
import random
from collections.abc import Callable

from patchyard.agent.approvals import first_of
from patchyard.agent.journal import Journal
from patchyard.agent.ports import Clock, ExitStatus, Sandbox, SandboxError, SandboxExecRequest, SandboxProcess
from patchyard.protocol.events import ExecOutputDelta, ItemCompleted
from patchyard.protocol.items import CommandExecutionItem, ItemStatus

from .output import OutputBuffer

_ITEM_OUTPUT_BYTES = 128 * 1024
"""Most output that is kept for the item that people see."""
_SESSION_IDS = range(1_000, 100_000)


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
        self.exited = asyncio.Event()
        """Set after the item was completed."""
        self.status: ExitStatus | None = None
        self.error: SandboxError | None = None
        self.killed = False
        self.seen = False
        """The model was told about it."""
        self.task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """Whether it still runs."""
        return not self.exited.is_set()


class ProcessTable:
    """All commands of a thread. Each one's item is completed exactly once, when it ends or is given up."""

    def __init__(self, journal: Journal, clock: Clock, *, limit: int, output_tokens: int) -> None:
        self._journal = journal
        self._clock = clock
        self._limit = limit
        self._output_tokens = output_tokens
        self._commands: dict[int, RunningCommand] = {}

    def get(self, session_id: int) -> RunningCommand | None:
        """A command that runs, or whose end nobody has read yet."""
        return self._commands.get(session_id)

    def has_room(self) -> bool:
        """Whether one more may start; forgets commands that ended unread when the table is full."""
        if len(self._commands) >= self._limit:
            for command in [c for c in self._commands.values() if not c.running]:
                del self._commands[command.session_id]
        return len(self._commands) < self._limit

    async def start(self, item: CommandExecutionItem, box: Sandbox, request: SandboxExecRequest) -> RunningCommand:
        """Start a command whose item is open. SandboxError when it can't start; the item stays open then."""
        process = await box.spawn(request)
        session_id = random.choice(_SESSION_IDS)  # noqa: S311 - a name, not a secret
        while session_id in self._commands:
            session_id = random.choice(_SESSION_IDS)  # noqa: S311
        command = RunningCommand(session_id, item, process, tty=request.tty, started=self._clock.monotonic())
        self._commands[session_id] = command
        command.task = asyncio.create_task(self._pump(command))
        if not request.tty:
            try:
                await process.write(b"", eof=True)
            except SandboxError:
                pass  # It has ended already; that is seen where its end is read.
        return command

    def forget(self, command: RunningCommand) -> None:
        """Its end was read."""
        self._commands.pop(command.session_id, None)

    async def kill(self, command: RunningCommand, *, grace_s: float) -> None:
        """Kill its process tree and complete its item. Never raises."""
        command.killed = True
        try:
            await first_of(self._kill(command), self._clock.sleep(grace_s))
        finally:
            self.forget(command)
            if command.task is not None and not command.task.done():
                command.task.cancel()
            self._complete(command, ItemStatus.INTERRUPTED)

    async def kill_all(self, *, grace_s: float) -> None:
        """Kill everything that runs."""
        running = [c for c in self._commands.values() if c.running]
        await asyncio.gather(*(self.kill(command, grace_s=grace_s) for command in running))
        self._commands.clear()

    async def _kill(self, command: RunningCommand) -> None:
        try:
            await command.process.kill()
        except SandboxError:
            return
        await command.exited.wait()

    async def _pump(self, command: RunningCommand) -> None:
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
        if command.exited.is_set():
            return
        command.exited.set()
        item = command.item.model_copy(
            update={
                "status": status,
                "aggregated_output": command.whole.take().shaped(self._output_tokens),
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
