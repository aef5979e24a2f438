"""What people allowed for longer than one call: for a thread, and for later tasks on a repository."""

from typing import Annotated, Literal

from pydantic import Field

from ._model import WireModel
from .ids import TenantId, Uuid7


class ApprovedCommand(WireModel):
    """A command that a person allowed for the thread, exactly as it was asked."""

    script: str
    cwd: str
    escalated: bool


class ApprovedRules(WireModel):
    """What people allowed for the rest of the thread."""

    commands: tuple[ApprovedCommand, ...] = ()
    paths: tuple[str, ...] = ()
    """Absolute paths of files that patches may touch."""
    prefixes: tuple[tuple[str, ...], ...] = ()
    """First words of commands that may run inside the sandbox."""


class AllowedCommand(WireModel):
    """This command may run inside the sandbox, exactly as it was asked."""

    type: Literal["command"] = "command"
    script: str
    cwd: str


class AllowedPrefix(WireModel):
    """Commands that begin with these words may run inside the sandbox."""

    type: Literal["prefix"] = "prefix"
    words: tuple[str, ...]


class AllowedPath(WireModel):
    """Patches may touch this file where the sandbox lets it be written anyway."""

    type: Literal["path"] = "path"
    path: str
    """Absolute, as seen in the box."""


ApprovalRule = Annotated[AllowedCommand | AllowedPrefix | AllowedPath, Field(discriminator="type")]
"""What may be remembered beyond its thread. Whatever lifts the sandbox is not among it (decision 0098)."""

SessionScope = Literal["thread", "repository"]
"""How far `accept_for_session` reaches: this thread, or every later task on its repository as well."""


class ApprovalView(WireModel):
    """An approval that counts for a repository, or did until it was revoked."""

    id: Uuid7
    tenant_id: TenantId
    repository: str
    """Its URL without `.git`, or its path."""
    rule: ApprovalRule
    thread_id: Uuid7
    task_id: Uuid7 | None = None
    """Where the question was asked."""
    approved_by: str | None = None
    """Name of the token that answered it."""
    approved_at: int
    """Times are milliseconds since the epoch."""
    revoked_by: str | None = None
    revoked_at: int | None = None
    """None: it counts."""


class ApprovalListResponse(WireModel):
    """One page of approvals, newest first."""

    data: tuple[ApprovalView, ...]
    next_cursor: str | None = None
