"""What the catalog answers with, besides the wire shapes of `patchyard.protocol.tasks`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from patchyard.protocol.approvals import ApprovalRule
from patchyard.protocol.model_items import TokenUsage
from patchyard.protocol.tasks import TaskView, TurnStatus


@dataclass(frozen=True)
class CreatedTask:
    """Outcome of create_task."""

    view: TaskView
    duplicate: bool
    """True: the idempotency key was known; `view` is the task that has it."""


@dataclass(frozen=True)
class ThreadSummary:
    """A thread, as far as its records were projected."""

    tenant_id: str
    thread_id: str
    task_id: str | None
    model: str | None
    closed: bool
    turns: int
    last_turn_id: str | None
    last_turn_status: TurnStatus | None
    usage: TokenUsage | None
    cost_usd: float | None
    created_at: int
    """Times are milliseconds since the epoch."""
    last_activity_at: int


@dataclass(frozen=True)
class TurnSummary:
    """A turn of a thread."""

    turn_id: str
    kind: str
    model: str
    status: TurnStatus
    started_at: int
    completed_at: int | None
    usage: TokenUsage | None
    cost_usd: float | None
    model_requests: int
    tool_calls: int


@dataclass(frozen=True)
class Projected:
    """The lines are in the catalog."""

    applied_through: int
    """Highest ordinal that the catalog holds now; -1: none."""
    kind: Literal["projected"] = "projected"


@dataclass(frozen=True)
class ProjectionGap:
    """Nothing was written: lines between the catalog and these are missing. Call reindex_thread with the whole rollout."""

    expected: int
    found: int
    kind: Literal["gap"] = "gap"


ProjectionResult = Projected | ProjectionGap


@dataclass(frozen=True)
class RememberedRules:
    """Approvals of a repository, as one of its threads needs them."""

    allowed: frozenset[ApprovalRule]
    """Count now."""
    revoked: Mapping[ApprovalRule, int]
    """Were given in this thread, and nobody's counts any more: how often."""


@dataclass(frozen=True)
class TokenRecord:
    """An API token. The token itself is never stored."""

    id: str
    tenant_id: str
    name: str
    local: bool
    """True: the machine's own token; its holder may name local paths."""
    created_at: int
    last_used_at: int | None
    """Precise to a minute."""
    revoked_at: int | None
