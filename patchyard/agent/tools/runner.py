"""Runs the calls of a step: side by side where tools allow it, outputs in the order of the calls."""

import asyncio
import logging
from dataclasses import dataclass

from patchyard.agent.budget import Spend
from patchyard.agent.context.history import Call, output_for
from patchyard.agent.errors import AgentError, ParkTurn, StopTurn, ToolError, TurnError
from patchyard.agent.ports import LeaseLost, SandboxError
from patchyard.agent.thread import Thread

from .calls import Tool, ToolCall, ToolOutput
from .output import truncate
from .registry import Registry

_log = logging.getLogger(__name__)


@dataclass
class _Running:
    call: ToolCall
    tool: Tool | None
    task: asyncio.Task[ToolOutput]
    recorded: bool = False


class CallRunner:
    """The calls of one step, over all attempts of its request."""

    def __init__(self, thread: Thread, registry: Registry, spend: Spend, turn_id: str) -> None:
        self._thread = thread
        self._registry = registry
        self._spend = spend
        self._turn_id = turn_id
        self._running: list[_Running] = []
        self._parked: ParkTurn | None = None

    def start(self, item: Call, *, again: bool = False) -> None:
        """Run a call as soon as those that it must wait for are over. Its item is in the history already.

        `again`: an earlier segment has counted it.
        """
        call = ToolCall(item, self._turn_id, self._thread.ports.clock.monotonic())
        tool = self._registry.get(item.name)
        before = [r.task for r in self._running if tool is None or not tool.parallel or (r.tool and not r.tool.parallel)]
        limit = self._spend.for_itself().tool_calls
        over = not again and limit is not None and self._spend.tool_calls >= limit
        self._spend.tool_calls += 0 if again else 1
        task = asyncio.create_task(self._run(call, tool, before, over=over))
        task.add_done_callback(_seen)
        self._running.append(_Running(call, tool, task))

    async def settle(self) -> None:
        """Wait for all calls and record their outputs in order. ParkTurn when some wait for a person; their calls stay open.

        TurnError, StopTurn and LeaseLost of a call end the waiting; `abort` deals with the rest.
        """
        for running in self._running:
            if not running.task.done():
                await asyncio.wait([running.task])
            try:
                self._record(running, running.task.result())
            except ParkTurn as parked:
                self._parked = parked if self._parked is None else self._parked.joined(parked)
        self._running = [r for r in self._running if not r.recorded]
        if notes := self._thread.hook_words.take_notes():
            self._thread.journal.post(*notes)
        await self._thread.journal.flush()
        if self._thread.stop_asked.is_set():
            raise StopTurn
        if (waits := self._parked) is not None:
            self._parked, self._running = None, []
            raise waits

    async def abort(self, why: str) -> None:
        """Cut off what runs; calls that ended keep their output, the others say why they have none."""
        await self.cancel()
        for running in self._running:
            if running.recorded:
                continue
            try:
                self._record(running, running.task.result())
            except (asyncio.CancelledError, AgentError, ParkTurn, StopTurn):
                self._record(running, self._aborted(running, why))
        self._running = []

    async def cancel(self) -> None:
        """Cut off what runs and record the outputs of calls that ended; the others stay open."""
        for running in self._running:
            running.task.cancel()
        if self._running:
            await asyncio.wait([r.task for r in self._running])
        for running in self._running:
            if not running.recorded and not running.task.cancelled() and running.task.exception() is None:
                self._record(running, running.task.result())

    def _record(self, running: _Running, output: ToolOutput) -> None:
        running.recorded = True
        if isinstance(output, str):
            # Tools keep their own budgets; this is the bound of what a tool forgot, or a server beyond our control sent.
            output = truncate(output, self._thread.config.output_tokens * 6 // 5)
        self._thread.journal.post(output_for(running.call.item, output))

    def _aborted(self, running: _Running, why: str) -> str:
        seconds = self._thread.ports.clock.monotonic() - running.call.started
        if running.tool is None:
            return why
        return running.tool.aborted(running.call, seconds=seconds, why=why)

    async def _run(
        self, call: ToolCall, tool: Tool | None, before: list[asyncio.Task[ToolOutput]], *, over: bool
    ) -> ToolOutput:
        if before:
            await asyncio.wait(before)
            if any(not t.cancelled() and isinstance(t.exception(), ParkTurn) for t in before):
                raise ParkTurn("approval", None)
        if tool is None:
            return f"unsupported call: {call.name}"
        if over:
            return "Not run: the turn's budget of tool calls is used up."
        attributes: dict[str, str | int | float | bool] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.type": tool.kind,
            "gen_ai.tool.call.id": call.id,
        }
        with self._thread.ports.telemetry.span(f"execute_tool {call.name}", key=call.id, attributes=attributes) as span:
            try:
                call = await self._allowed(call)
                output = await self._checked(call, await tool.run(call))
            except ToolError as error:
                span.set(**{"patchyard.tool.success": False})
                return error.info.message
            except SandboxError as error:
                span.set(**{"patchyard.tool.success": False, "error.type": error.info.code.value})
                return error.info.message
            except (LeaseLost, TurnError, ParkTurn, StopTurn):
                raise
            except Exception:  # noqa: BLE001 - boundary
                # The boundary of a tool: whatever is wrong in it, the turn goes on and the model hears of it.
                _log.exception("tool %s failed", call.name, extra={"call_id": call.id})
                return f"{call.name} failed because of a fault in the service. Try another way."
            span.set(**{"patchyard.tool.success": True})
            return output

    # --- hooks

    async def _allowed(self, call: ToolCall) -> ToolCall:
        """The call as PreToolUse hooks leave it. ToolError when one refuses it."""
        hooks = self._thread.hooks
        given = call.hook_input()
        verdict = await hooks.before_tool(call.name, given, call.id)
        self._thread.hook_words.note(hooks.notes(verdict))
        if verdict.block is not None:
            command = given.get("command") if isinstance(given, dict) else None
            what = f"Command: {command}" if command else f"Tool: {call.name}"
            raise ToolError(f"Command blocked by PreToolUse hook: {verdict.block}. {what}")
        return call if verdict.updated_input is None else call.with_hook_input(verdict.updated_input)

    async def _checked(self, call: ToolCall, output: ToolOutput) -> ToolOutput:
        """The output, or what a PostToolUse hook puts in its place."""
        hooks = self._thread.hooks
        text = output if isinstance(output, str) else "".join(getattr(part, "text", "[image]") for part in output)
        verdict = await hooks.after_tool(call.name, call.hook_input(), call.id, text)
        self._thread.hook_words.note(hooks.notes(verdict))
        self._thread.hook_words.ask_to_stop(verdict.stop)
        return output if verdict.block is None else verdict.block


def _seen(task: "asyncio.Task[ToolOutput]") -> None:
    """When the lease is lost nobody waits for it any more: its failure must not be reported as forgotten."""
    if not task.cancelled():
        task.exception()
