"""spawn_agent, send_input, wait_agent and close_agent."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from patchyard.agent.errors import ToolError
from patchyard.agent.prompts import tool_description
from patchyard.agent.thread import Thread
from patchyard.agent.tools.calls import Arguments, Tool, ToolCall, function_spec, parse_arguments
from patchyard.agent.tools.output import truncate
from patchyard.protocol.events import ItemCompleted, ItemStarted
from patchyard.protocol.items import ItemStatus, SubAgentItem

from .port import AgentState

_WAIT_MS = (1_000, 600_000)
_DEFAULT_WAIT_MS = 60_000
_MESSAGE_TOKENS = 4_000
"""Most of one agent's answer."""


class _AgentTool:
    """What the four have in common: a function, an item for people, side by side with others."""

    name: str
    kind: Literal["function", "custom"] = "function"
    parallel = True
    action: Literal["spawn", "send", "wait", "close"]
    properties: Mapping[str, Any]
    required: tuple[str, ...]

    def __init__(self, thread: Thread) -> None:
        self._thread = thread
        self._agents = thread.agents

    def spec(self) -> Mapping[str, Any]:
        """See Tool."""
        return function_spec(self.name, tool_description(self.name), self.properties, required=self.required)

    def aborted(self, call: ToolCall, *, seconds: float, why: str) -> str:
        """See Tool."""
        return f"{why} after {seconds:.1f} seconds"

    def _open(
        self, call: ToolCall, agents: tuple[str, ...], message: str | None = None, *, until: int | None = None
    ) -> Callable[..., None]:
        """Show what is done; the answer closes the item."""
        item = SubAgentItem(
            id=call.id, action=self.action, agents=agents, message=message, until=until, status=ItemStatus.IN_PROGRESS
        )
        self._thread.journal.post(ItemStarted(item=item, started_at=self._thread.ports.clock.now_ms()))
        return self._closing(item)

    def _closing(self, item: SubAgentItem) -> Callable[..., None]:
        journal, now_ms = self._thread.journal, self._thread.ports.clock.now_ms

        def close(status: ItemStatus = ItemStatus.COMPLETED, **changes: Any) -> None:
            ended = item.model_copy(update={"status": status, **changes})
            journal.post(ItemCompleted(item=ended, completed_at=now_ms()))

        return close


class _SpawnArguments(Arguments):
    message: str = Field(min_length=1)


class SpawnAgent(_AgentTool):
    """Starts an agent."""

    name = "spawn_agent"
    action = "spawn"
    properties: Mapping[str, Any] = {"message": {"type": "string", "description": "The whole order; it knows nothing else."}}
    required = ("message",)

    async def run(self, call: ToolCall) -> str:
        """See Tool."""
        arguments = parse_arguments(_SpawnArguments, call)
        close = self._open(call, (), arguments.message)
        try:
            thread_id = await self._agents.spawn(arguments.message)
        except ToolError:
            close(ItemStatus.FAILED)
            raise
        close(agents=(thread_id,))
        return json.dumps({"agent_id": thread_id})


class _SendArguments(Arguments):
    agent_id: str
    message: str = Field(min_length=1)
    interrupt: bool = False


class SendInput(_AgentTool):
    """Gives an agent more input."""

    name = "send_input"
    action = "send"
    properties: Mapping[str, Any] = {
        "agent_id": {"type": "string"},
        "message": {"type": "string"},
        "interrupt": {"type": "boolean", "description": "Stop what it does first; default false: it reads it in between."},
    }
    required = ("agent_id", "message")

    async def run(self, call: ToolCall) -> str:
        """See Tool."""
        arguments = parse_arguments(_SendArguments, call)
        close = self._open(call, (arguments.agent_id,), arguments.message)
        try:
            await self._agents.send(arguments.agent_id, arguments.message, interrupt=arguments.interrupt)
        except ToolError:
            close(ItemStatus.FAILED)
            raise
        close()
        return "Sent. Wait for its answer with wait_agent."


class _WaitArguments(Arguments):
    ids: tuple[str, ...] = ()
    timeout_ms: int = _DEFAULT_WAIT_MS


class WaitAgent(_AgentTool):
    """Waits for agents."""

    name = "wait_agent"
    action = "wait"
    properties: Mapping[str, Any] = {
        "ids": {"type": "array", "items": {"type": "string"}, "description": "Which; all open ones when absent."},
        "timeout_ms": {"type": "number", "description": "Longest wait; default 60000, at most 600000."},
    }
    required: tuple[str, ...] = ()

    async def run(self, call: ToolCall) -> str:
        """See Tool."""
        arguments = parse_arguments(_WaitArguments, call)
        waits = self._thread.journal.open_items.get(call.id)
        if isinstance(waits, SubAgentItem) and waits.until is not None:
            # Begun in an earlier segment: the turn was parked meanwhile, or another worker had it.
            ids, until = waits.agents, waits.until
            close = self._closing(waits)
        else:
            ids = tuple(dict.fromkeys(arguments.ids)) or tuple(self._agents.open_ids())
            if not ids:
                raise ToolError("There is no open agent to wait for.")
            wait_ms = min(max(arguments.timeout_ms, _WAIT_MS[0]), _WAIT_MS[1])
            until = self._thread.ports.clock.now_ms() + wait_ms
            close = self._open(call, ids, until=until)
        try:
            states = await self._agents.wait(ids, until_ms=until)
        except ToolError:
            close(ItemStatus.FAILED)
            raise
        close()
        return self._thread.redactor.text(json.dumps(self._answer(states), ensure_ascii=False))

    def _answer(self, states: Sequence[AgentState]) -> Mapping[str, Any]:
        told = {state.thread_id: _told(state) for state in states}
        waits = all(state.busy for state in states)
        if waits and self._agents.input_came.is_set():
            return {"agents": told, "timed_out": False, "new_input": True}
        return {"agents": told, "timed_out": waits}


class _CloseArguments(Arguments):
    agent_id: str


class CloseAgent(_AgentTool):
    """Ends an agent."""

    name = "close_agent"
    action = "close"
    properties: Mapping[str, Any] = {"agent_id": {"type": "string"}}
    required = ("agent_id",)

    async def run(self, call: ToolCall) -> str:
        """See Tool."""
        arguments = parse_arguments(_CloseArguments, call)
        close = self._open(call, (arguments.agent_id,))
        try:
            state = await self._agents.close(arguments.agent_id)
        except ToolError:
            close(ItemStatus.FAILED)
            raise
        close()
        return json.dumps({"closed": state.thread_id, **_told(state)}, ensure_ascii=False)


def _told(state: AgentState) -> dict[str, str]:
    told: dict[str, str] = {"status": state.status}
    if state.last_message and not state.busy:
        told["message"] = truncate(state.last_message, _MESSAGE_TOKENS)
    if state.error:
        told["error"] = state.error
    return told


def agent_tools(thread: Thread) -> tuple[Tool, ...]:
    """The tools of a thread whose agent may start others."""
    if not thread.agents.offered:
        return ()
    return (SpawnAgent(thread), SendInput(thread), WaitAgent(thread), CloseAgent(thread))
