"""write_stdin: types into a command that still runs, or looks at what it wrote since."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from patchyard.agent.errors import ToolError
from patchyard.agent.ports import SandboxError
from patchyard.agent.prompts import tool_description
from patchyard.agent.thread import Thread

from .calls import Arguments, ToolCall, function_spec, parse_arguments
from .exec_command import collect

_INTERRUPT = "\x03"
_SIGINT = 2
_WRITE_MS = (250, 30_000)
_POLL_MS = (5_000, 300_000)


class WriteArguments(Arguments):
    """Arguments of write_stdin. Times are milliseconds."""

    session_id: int
    chars: str = ""
    yield_time_ms: int | None = None
    max_output_tokens: int | None = Field(default=None, ge=0)


class WriteStdin:
    """See the module."""

    name = "write_stdin"
    kind: Literal["function", "custom"] = "function"
    parallel = True

    def __init__(self, thread: Thread) -> None:
        self._thread = thread

    def spec(self) -> Mapping[str, Any]:
        """See Tool."""
        return function_spec(
            self.name,
            tool_description(self.name),
            {
                "session_id": {"type": "number", "description": "The session ID that exec_command returned."},
                "chars": {"type": "string", "description": "What to type; empty: only look."},
                "yield_time_ms": {"type": "number", "description": "How long to wait for output or its end."},
                "max_output_tokens": {"type": "number", "description": "Most tokens of output to return; default 10000."},
            },
            required=("session_id",),
        )

    def aborted(self, call: ToolCall, *, seconds: float, why: str) -> str:
        """See Tool."""
        return f"{why} after {seconds:.1f} seconds"

    async def run(self, call: ToolCall) -> str:
        """See Tool."""
        arguments = parse_arguments(WriteArguments, call)
        command = self._thread.processes.get(arguments.session_id)
        if command is None:
            raise ToolError(f"There is no running command with session ID {arguments.session_id}: it has ended, or never ran.")
        if arguments.chars and command.running:
            try:
                if arguments.chars == _INTERRUPT and not command.tty:
                    await command.process.kill(_SIGINT)
                elif not command.tty:
                    raise ToolError(
                        "The standard input of this command is closed. To type into a program, start it again with tty=true."
                    )
                else:
                    await command.process.write(arguments.chars.encode())
            except SandboxError as error:
                raise ToolError(f"Could not write: {error.info.message}") from error
        low, high = _WRITE_MS if arguments.chars else _POLL_MS
        wait = min(max(arguments.yield_time_ms or low, low), high)
        return await collect(self._thread, command, wait_ms=wait, max_tokens=arguments.max_output_tokens)
