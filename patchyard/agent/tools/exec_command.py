"""exec_command: runs a shell script in the thread's box."""

import secrets
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from patchyard.agent.approvals import CommandAsk, Declined, first_of
from patchyard.agent.environment import command_environment
from patchyard.agent.errors import StopTurn, ToolError
from patchyard.agent.patches import PatchProgram
from patchyard.agent.ports import ExecLimits, SandboxError, SandboxExecRequest
from patchyard.agent.prompts import tool_description
from patchyard.agent.thread import Thread
from patchyard.patch import intercept
from patchyard.policy import resolve
from patchyard.protocol.events import ItemCompleted, ItemStarted
from patchyard.protocol.items import CommandExecutionItem, ItemStatus
from patchyard.protocol.policies import DangerFullAccess, ReadOnly, SandboxPolicy

from .apply_patch import ApplyPatch
from .calls import Arguments, ToolCall, function_spec, parse_arguments
from .processes import RunningCommand

DEFAULT_YIELD_MS = 10_000
_YIELD_MS = (250, 30_000)


class ExecArguments(Arguments):
    """Arguments of exec_command. Times are milliseconds."""

    cmd: str
    workdir: str | None = None
    shell: str = "bash"
    login: bool = False
    tty: bool = False
    yield_time_ms: int = DEFAULT_YIELD_MS
    max_output_tokens: int | None = Field(default=None, ge=0)
    sandbox_permissions: Literal["use_default", "require_escalated"] = "use_default"
    justification: str | None = None
    prefix_rule: tuple[str, ...] | None = None


class ExecCommand:
    """See the module."""

    name = "exec_command"
    kind: Literal["function", "custom"] = "function"
    parallel = True

    def __init__(self, thread: Thread, patches: ApplyPatch) -> None:
        self._thread = thread
        self._patches = patches

    def spec(self) -> Mapping[str, Any]:
        """See Tool."""
        return function_spec(
            self.name,
            tool_description(self.name),
            {
                "cmd": _text("The shell script to run."),
                "workdir": _text("Folder to run it in; the workspace when absent."),
                "shell": _text("Shell to run it with; bash when absent."),
                "login": {"type": "boolean", "description": "Run it as a login shell. Rarely needed; default false."},
                "tty": {
                    "type": "boolean",
                    "description": "Give it a terminal, for programs that are typed into; default false.",
                },
                "yield_time_ms": _number("How long to wait for its end before it goes on in the background; default 10000."),
                "max_output_tokens": _number("Most tokens of output to return; default 10000."),
                "sandbox_permissions": {
                    "type": "string",
                    "enum": ["use_default", "require_escalated"],
                    "description": "require_escalated asks to run it without the sandbox's restrictions.",
                },
                "justification": _text("With require_escalated: a one-sentence question to a person."),
                "prefix_rule": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "With require_escalated: first words of commands that a person could allow for good.",
                },
            },
            required=("cmd",),
        )

    def aborted(self, call: ToolCall, *, seconds: float, why: str) -> str:
        """See Tool."""
        return f"Wall time: {seconds:.1f} seconds\n{why}"

    async def run(self, call: ToolCall) -> str:
        """See Tool."""
        arguments = parse_arguments(ExecArguments, call)
        settings = self._thread.active_settings
        cwd = resolve(arguments.workdir or settings.cwd, settings.cwd)
        if (found := intercept(arguments.cmd)) is not None:
            return await self._patches.apply_found(call, found.patch, cwd=resolve(found.folder or ".", cwd))
        item = CommandExecutionItem(id=call.id, command=arguments.cmd, cwd=cwd, status=ItemStatus.IN_PROGRESS)
        journal, now_ms = self._thread.journal, self._thread.ports.clock.now_ms
        if item.id not in journal.open_items:
            await journal.commit(ItemStarted(item=item, started_at=now_ms()))
        try:
            command = await self._start(item, arguments, cwd)
        except (ToolError, SandboxError) as error:
            status = ItemStatus.DECLINED if isinstance(error, Declined) else ItemStatus.FAILED
            ended = item.model_copy(update={"status": status, "aggregated_output": error.info.message})
            journal.post(ItemCompleted(item=ended, completed_at=now_ms()))
            raise
        wait = min(max(arguments.yield_time_ms, _YIELD_MS[0]), _YIELD_MS[1])
        return await collect(self._thread, command, wait_ms=wait, max_tokens=arguments.max_output_tokens)

    async def _start(self, item: CommandExecutionItem, arguments: ExecArguments, cwd: str) -> RunningCommand:
        thread, settings = self._thread, self._thread.active_settings
        argv = (arguments.shell, "-lc" if arguments.login else "-c", arguments.cmd)
        escalate = arguments.sandbox_permissions == "require_escalated"
        ask = CommandAsk(
            item.id, arguments.cmd, argv, cwd, escalate, arguments.justification, arguments.prefix_rule if escalate else None
        )
        approval_id = await thread.approvals.command(ask, settings)
        if not await thread.processes.make_room(grace_s=thread.config.interrupt_grace_s):
            limit = thread.config.sessions_limit
            raise ToolError(f"{limit} commands run already. End some of them (write_stdin with Ctrl-C), then try again.")
        policy: SandboxPolicy = DangerFullAccess() if escalate else settings.sandbox
        request = SandboxExecRequest(
            argv=argv,
            cwd=cwd,
            env=command_environment(thread.config, policy, tty=arguments.tty),
            policy=policy,
            tty=arguments.tty,
            limits=ExecLimits(wall_time_s=thread.config.spec.command_timeout_s),
            approval_id=approval_id,
        )
        box = await thread.box()
        thread.changed_files = thread.changed_files or not isinstance(policy, ReadOnly)
        program = PatchProgram(thread, self._patches.work, item_id=item.id, policy=policy)
        return await thread.processes.start(item, box, request, patches=program)


async def collect(thread: Thread, command: RunningCommand, *, wait_ms: int, max_tokens: int | None) -> str:
    """Wait for a command's end, at most so long, and describe what it wrote since the last time.

    StopTurn when a person answered a question about one of its patches with `cancel`.
    """
    clock = thread.ports.clock
    started = clock.monotonic()
    if command.running:
        await first_of(command.ended.wait(), thread.stop_asked.wait(), clock.sleep(wait_ms / 1000))
    if thread.stop_asked.is_set():
        raise StopTurn
    captured = command.unread.take()
    budget = min(thread.config.output_tokens if max_tokens is None else max_tokens, thread.config.output_tokens)
    if command.running:
        state = [f"Process running with session ID {command.session_id}"]
        if (running := thread.processes.crowded) is not None:
            most = thread.config.sessions_limit
            state.append(f"Warning: {running} commands run. Beyond {most} the one that was used longest ago is stopped.")
    else:
        state = _ending(thread, command)
        thread.processes.forget(command)
    # The first look counts from the command's start, later ones from their own.
    since = command.started if not command.seen else started
    command.seen = True
    lines = [
        f"Chunk ID: {secrets.token_hex(3)}",
        f"Wall time: {clock.monotonic() - since:.4f} seconds",
        *state,
        f"Original token count: {captured.original_tokens}",
        "Output:",
        thread.redactor.text(captured.shaped(budget)),
    ]
    return "\n".join(lines)


def _ending(thread: Thread, command: RunningCommand) -> list[str]:
    if command.error is not None:
        return [f"The command was lost: {command.error.info.message}"]
    status = command.status
    if status is None:
        return ["The command was killed."]
    lines = [f"Process exited with code {status.code}"]
    if status.timed_out or command.timed_out:
        limit = thread.config.spec.command_timeout_s
        lines.append(
            f"It was stopped after {limit:g} seconds, the limit of one command; all its processes were killed. "
            "Run a smaller part of it."
            if limit is not None
            else "It was stopped at its time limit; all its processes were killed."
        )
    if status.oom_killed:
        lines.append("It was killed because the sandbox ran out of memory.")
    return lines


def _text(description: str) -> Mapping[str, Any]:
    return {"type": "string", "description": description}


def _number(description: str) -> Mapping[str, Any]:
    return {"type": "number", "description": description}
