"""Thread items: the units inside a turn that people and clients see. Every `item_started` gets one `item_completed`."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from ._model import WireModel
from .ops import UserInput


class ItemStatus(StrEnum):
    """State of an item that takes time."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    DECLINED = "declined"
    INTERRUPTED = "interrupted"


class _Item(WireModel):
    id: str
    """The model's item id or call id where one exists, so that delta, item and model call join without a table."""


class UserMessageItem(_Item):
    """Input of the user, delivered to the model."""

    type: Literal["user_message"] = "user_message"
    content: tuple[UserInput, ...]
    submission_id: str | None = None
    idempotency_key: str | None = None


class AgentMessageItem(_Item):
    """Text of the model."""

    type: Literal["agent_message"] = "agent_message"
    text: str
    status: ItemStatus = ItemStatus.COMPLETED
    phase: str | None = None


class ReasoningItem(_Item):
    """Summary of the model's reasoning."""

    type: Literal["reasoning"] = "reasoning"
    summary: tuple[str, ...]
    status: ItemStatus = ItemStatus.COMPLETED


class CommandExecutionItem(_Item):
    """A command in the sandbox."""

    type: Literal["command_execution"] = "command_execution"
    command: str
    cwd: str
    status: ItemStatus
    process_id: int | None = None
    """Session id while it runs in the background."""
    aggregated_output: str | None = None
    """What the model was shown, without control sequences."""
    exit_code: int | None = None
    duration_ms: int | None = None


class FileUpdate(WireModel):
    """One file of a patch."""

    path: str
    """Relative to the workspace, as in the patch."""
    kind: Literal["add", "update", "delete"]
    move_path: str | None = None
    diff: str
    """Unified diff; the content for add and delete."""


class FileChangeItem(_Item):
    """A patch."""

    type: Literal["file_change"] = "file_change"
    changes: tuple[FileUpdate, ...]
    """Of a patch that did not fit: what it wanted, in its own lines; empty when it could not be read at all."""
    status: ItemStatus
    error: str | None = None
    """Why it was not applied: what the model was told."""


class McpToolCallItem(_Item):
    """A call of an MCP tool."""

    type: Literal["mcp_tool_call"] = "mcp_tool_call"
    server: str
    tool: str
    arguments: dict[str, Any]
    status: ItemStatus
    result: str | None = None
    error: str | None = None
    duration_ms: int | None = None


class PlanStep(WireModel):
    """One line of the plan."""

    step: str
    status: Literal["pending", "in_progress", "completed"]


class PlanItem(_Item):
    """The agent's plan; a later one replaces it."""

    type: Literal["plan"] = "plan"
    explanation: str | None = None
    steps: tuple[PlanStep, ...]


class ContextCompactionItem(_Item):
    """The history was compacted."""

    type: Literal["context_compaction"] = "context_compaction"
    status: ItemStatus
    window_number: int | None = None
    """Number of the window that it opened."""
    trigger: Literal["manual", "auto"] | None = None
    method: Literal["local", "remote", "token_budget"] | None = None
    tokens_before: int | None = None
    """Estimate of the window that it closed."""
    tokens_after: int | None = None
    """Estimate of the window that it opened."""


class SubAgentItem(_Item):
    """Something that the agent did with other agents."""

    type: Literal["sub_agent"] = "sub_agent"
    action: Literal["spawn", "send", "wait", "close"]
    agents: tuple[str, ...] = ()
    """Their thread ids."""
    message: str | None = None
    until: int | None = None
    """When a wait ends at the latest, in milliseconds since the epoch."""
    status: ItemStatus


Item = Annotated[
    UserMessageItem
    | AgentMessageItem
    | ReasoningItem
    | CommandExecutionItem
    | FileChangeItem
    | McpToolCallItem
    | PlanItem
    | ContextCompactionItem
    | SubAgentItem,
    Field(discriminator="type"),
]
