"""Tasks: what people submit, and the states of everything."""

import functools
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, field_validator
from pydantic_core import SchemaError, SchemaValidator, core_schema

from ._model import RequestModel, WireModel
from .errors import ErrorInfo
from .ids import TenantId, Uuid7
from .model_items import TokenUsage
from .policies import ApprovalMode, ApprovalPolicy, Budgets, SandboxPolicy, WorkspaceWrite


class TaskStatus(StrEnum):
    """State of a task; each comes with a reason."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    VERIFYING = "verifying"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Whether nothing more will happen by itself."""
        return self in (TaskStatus.SUCCEEDED, TaskStatus.FAILED, TaskStatus.CANCELLED)


class TurnStatus(StrEnum):
    """State of a turn."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class ApprovalStatus(StrEnum):
    """State of a question."""

    PENDING = "pending"
    ACCEPTED = "accepted"
    ACCEPTED_FOR_SESSION = "accepted_for_session"
    DECLINED = "declined"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class GitSource(WireModel):
    """A repository to clone: an https or ssh URL, or an absolute local path (only from the local user)."""

    type: Literal["git"] = "git"
    url: Annotated[str, StringConstraints(min_length=1, max_length=2048)]


class ArchiveSource(WireModel):
    """An uploaded artefact: a git bundle or a tar archive of a tree."""

    type: Literal["archive"] = "archive"
    artefact_id: str
    format: Literal["bundle", "tar"]


class NoSource(WireModel):
    """No repository: an empty workspace."""

    type: Literal["none"] = "none"


RepositorySource = Annotated[GitSource | ArchiveSource | NoSource, Field(discriminator="type")]


class SetupSpec(WireModel):
    """Runs once, with network, before the agent; its result is an image that agent and verification share."""

    command: Annotated[str, StringConstraints(min_length=1, max_length=65536)]
    timeout_s: float = Field(default=600, gt=0, le=7200)


class VerifySpec(WireModel):
    """The check that makes a patch *verified*: exit code 0 in a fresh container on base + patch (+ overlay)."""

    command: Annotated[str, StringConstraints(min_length=1, max_length=65536)]
    overlay_artefact_id: str | None = None
    """An uploaded tar archive that is laid over the tree before the command runs (hidden tests)."""
    timeout_s: float = Field(default=600, gt=0, le=7200)


class HookEvent(StrEnum):
    """When a hook runs."""

    SESSION_START = "SessionStart"
    USER_PROMPT_SUBMIT = "UserPromptSubmit"
    PRE_TOOL_USE = "PreToolUse"
    PERMISSION_REQUEST = "PermissionRequest"
    POST_TOOL_USE = "PostToolUse"
    PRE_COMPACT = "PreCompact"
    POST_COMPACT = "PostCompact"
    STOP = "Stop"


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


class HookSpec(WireModel):
    """A command that runs inside the sandbox at an event: JSON on its standard input, an answer on its standard output."""

    matcher: Annotated[str, StringConstraints(max_length=200), AfterValidator(_pattern)] | None = None
    """Regular expression for the whole tool name (`Bash` is another one of exec_command), source (SessionStart) or trigger
    (compaction), without look-around, back references and counts. None or `*` fits all."""
    command: Annotated[str, StringConstraints(min_length=1, max_length=65536)]
    timeout_s: float = Field(default=60, gt=0, le=600)


MOST_HOOKS = 64
"""Of a task: those of an event run side by side."""
MOST_MATCHER_CHARS = 1000
"""Of all matchers of a task: each of them has to be compiled, and they come from strangers."""
_MATCHER_OFFER = "Use names, `|`, groups, classes, and `.`, `*`, `+`, `?`"


def check_matchers(matchers: Iterable[str | None]) -> None:
    """The matchers of all hooks. ValueError: one of them can't be used, or they are too many or too long altogether."""
    hooks = list(matchers)
    if len(hooks) > MOST_HOOKS:
        raise ValueError(f"there may be {MOST_HOOKS} hooks. Put what they do into fewer commands")
    given = [matcher for matcher in hooks if matcher is not None]
    if sum(map(len, given)) > MOST_MATCHER_CHARS:
        raise ValueError(f"all matchers together may have {MOST_MATCHER_CHARS} characters. Use simpler ones")
    for matcher in given:
        if matcher != "*" and _compiled(matcher) is None:
            raise ValueError(
                f"the matcher {matcher!r} can't be used: no look-around, back references or counts. {_MATCHER_OFFER}"
            )


def matcher_fits(matcher: str | None, subject: str) -> bool:
    """Whether the whole subject matches.

    A matcher that can't be used (0.1.0 took more) fits all: rather a guard too often than too rarely.
    """
    if matcher in (None, "", "*"):
        return True
    compiled = _compiled(matcher or "")
    return compiled is None or compiled.isinstance_python(subject)


@functools.lru_cache(maxsize=512)
def _compiled(matcher: str) -> SchemaValidator | None:
    """By an engine whose time grows with the length only. A count such as `a{1000}` would make a short text long."""
    if "{" in matcher:
        return None
    try:
        return SchemaValidator(core_schema.str_schema(pattern=f"^(?:{matcher})$", regex_engine="rust-regex"))
    except SchemaError:
        return None


class TaskSpec(WireModel):
    """What a task is to do. Everything a worker needs, without the catalog."""

    repository: RepositorySource
    base: str | None = None
    """Commit, tag or branch; None: the repository's HEAD."""
    instruction: Annotated[str, StringConstraints(min_length=1, max_length=200_000, pattern=r"\S")]
    instruction_untrusted: bool = False
    """True: the text came from outside (an issue) and is marked as data for the model."""
    model: str | None = None
    """None: the service's default model."""
    effort: str | None = None
    setup: SetupSpec | None = None
    verify: VerifySpec | None = None
    approval: ApprovalPolicy = ApprovalMode.ON_REQUEST
    sandbox: SandboxPolicy = Field(default_factory=WorkspaceWrite)
    budgets: Budgets = Field(default_factory=Budgets)
    command_timeout_s: float | None = Field(default=600, gt=0)
    """Limit of one command; its process tree is killed then."""
    deliverable: Literal["patch"] = "patch"
    labels: dict[str, str] = Field(default_factory=dict)
    hooks: dict[HookEvent, tuple[HookSpec, ...]] = Field(default_factory=dict)
    """Hooks of this task."""
    repository_hooks: bool = False
    """True: the hooks of `.patchyard/hooks.toml` at the base commit run as well, after those of the task. Only for repositories
    that you trust: a PermissionRequest hook may answer questions in a person's place."""


class VerifyResult(WireModel):
    """Outcome of a verification."""

    passed: bool
    exit_code: int | None
    """None: it did not start, was lost or ran out of time."""
    round: int
    """1 for the first try; failing output goes back to the agent at most twice."""
    log_artefact_id: str | None = None
    output_tail: str = ""
    duration_ms: int = 0
    error: ErrorInfo | None = None


class PatchSummary(WireModel):
    """The patch that a task produced."""

    artefact_id: str
    files: int
    insertions: int
    deletions: int
    bytes: int


class TaskView(WireModel):
    """A task as the API shows it."""

    id: Uuid7
    tenant_id: TenantId
    thread_id: Uuid7
    turn_id: str | None = None
    status: TaskStatus
    reason: str
    """Why it is in this state, a code: queued, running, approval, completed, no_change, …"""
    title: str
    spec: TaskSpec
    created_at: int
    """Times are milliseconds since the epoch."""
    started_at: int | None = None
    completed_at: int | None = None
    verified: bool | None = None
    """None: no verify command was given, or it has not run yet."""
    verify: VerifyResult | None = None
    patch: PatchSummary | None = None
    usage: TokenUsage | None = None
    cost_usd: float | None = None
    """None: the price is not known (never shown as 0)."""
    error: ErrorInfo | None = None
    final_message: str | None = None
    trace_id: str | None = None


class TaskCreateRequest(RequestModel):
    """Body of POST /v1/tasks."""

    spec: TaskSpec
    idempotency_key: str | None = Field(default=None, max_length=200)

    @field_validator("spec")
    @classmethod
    def _matchers_can_be_used(cls, spec: TaskSpec) -> TaskSpec:
        check_matchers(hook.matcher for hooks in spec.hooks.values() for hook in hooks)
        return spec


class TaskCreateResponse(WireModel):
    """Answer of POST /v1/tasks."""

    task_id: Uuid7
    thread_id: Uuid7
    turn_id: str
    trace_id: str
    duplicate: bool = False


class TaskListResponse(WireModel):
    """One page of tasks, newest first."""

    data: tuple[TaskView, ...]
    next_cursor: str | None = None


class OpRequest(RequestModel):
    """Body of POST /v1/threads/{id}/ops. `op` is any Op."""

    op: dict[str, object]
    idempotency_key: str | None = Field(default=None, max_length=200)


class ThreadView(WireModel):
    """A thread as the API shows it."""

    id: Uuid7
    tenant_id: TenantId
    task_id: Uuid7 | None = None
    status: Literal["idle", "queued", "running", "parked", "closed"]
    active_turn_id: str | None = None
    next_ordinal: int
    """Number of records that the thread has so far."""


class ArtefactView(WireModel):
    """Answer of POST /v1/artefacts."""

    artefact_id: str
    bytes: int
    sha256: str
