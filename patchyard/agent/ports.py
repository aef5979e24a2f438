"""What the agent core needs from outside. Each port names its implementers; `patchyard.testing` ships a strict double of each.

ThreadChannel   the thread's SQ and EQ, fenced     adapters.queue, testing
ModelClient     a model's response as a stream     adapters.model, testing
SandboxSource   the turn's box, started late       adapters.sandbox through workers, testing
Sandbox         a running box                      adapters.sandbox, testing
SandboxProcess  a command in it                    adapters.sandbox, testing
TurnGate        what must hold before a turn ends  workers (patch + verification), testing
Telemetry       spans                              observability, testing
Clock           time                               workers, testing
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.events import DurableMsg, LiveMsg
from patchyard.protocol.model_items import ModelItem, TokenUsage
from patchyard.protocol.ops import Submission, TraceContext
from patchyard.protocol.policies import SandboxPolicy
from patchyard.protocol.rollout_lines import LinePayload, ModelRequestRecord
from patchyard.protocol.tasks import TurnStatus

# --- thread channel -----------------------------------------------------------------------------


class LeaseLost(Exception):
    """Another worker owns the thread now: stop at once, write nothing, leave effects to the new owner."""


class ThreadChannel(Protocol):
    """The thread's submission and event queue, held under a lease. Every method but `live` raises LeaseLost."""

    async def receive(self) -> Submission:
        """The next submission that was not received yet, in order; waits for one. Cancel-safe."""
        ...

    async def commit(
        self,
        payloads: Sequence[LinePayload],
        *,
        turn_id: str | None = None,
        submission_id: str | None = None,
        consumed: Sequence[str] = (),
    ) -> None:
        """Append records atomically and durably, and drop the `consumed` submissions in the same step.

        Adds ordinals and timestamps. Retries an unreachable queue until the lease is gone. Applying it twice is harmless.
        """
        ...

    async def finish_turn(
        self,
        payloads: Sequence[LinePayload],
        *,
        turn_id: str,
        consumed: Sequence[str] = (),
        answers: Mapping[str, Sequence[LinePayload]] | None = None,
        keep_lease: bool = False,
    ) -> bool:
        """Commit the terminal records and clear the active turn. Agents that it has started end with it.

        `answers`: records by the submission that they answer; they come before the others, and consume it in the same step.

        `keep_lease`: the thread stays with this owner although nothing waits, since something of the turn still runs.

        False: nothing was written, because a steer for this turn waits unreceived or unconsumed; take it and do one more step.
        """
        ...

    async def park(
        self,
        payloads: Sequence[LinePayload],
        *,
        turn_id: str,
        until_ms: int | None = None,
        awaits: Sequence[str] = (),
    ) -> None:
        """Commit and release lease and slot; an answer (or the time) makes the thread ready again under the same turn id.

        `awaits`: agents of this turn; the end of a turn of one of them does so too, also when it came before the park.
        """
        ...

    def live(self, msg: LiveMsg, *, turn_id: str | None = None) -> None:
        """Show something to whoever watches now. Never blocks, never fails; coalesced by the implementer."""
        ...


# --- model --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelRequest:
    """One request to a model."""

    model: str
    instructions: str
    input: Sequence[ModelItem]
    tools: Sequence[Mapping[str, Any]]
    """Tool specifications as the Responses API takes them."""
    thread_id: str
    turn_id: str
    parallel_tool_calls: bool = True
    effort: str | None = None
    output_schema: Mapping[str, Any] | None = None
    window_number: int = 0
    kind: Literal["turn", "compaction", "review"] = "turn"
    attempt: int = 1
    """1 for the first try; the stream layer counts on."""


@dataclass(frozen=True)
class ResponseCreated:
    """The provider took the request."""

    response_id: str


@dataclass(frozen=True)
class ItemAdded:
    """The model began an item; its content is still empty or partial."""

    item: ModelItem


@dataclass(frozen=True)
class TextDelta:
    """More text of a message."""

    item_id: str
    delta: str


@dataclass(frozen=True)
class ReasoningSummaryDelta:
    """More of a reasoning summary; a new `summary_index` begins a paragraph."""

    item_id: str
    delta: str
    summary_index: int


@dataclass(frozen=True)
class ToolInputDelta:
    """More arguments (function) or input (custom) of a call."""

    item_id: str
    delta: str


@dataclass(frozen=True)
class ItemDone:
    """An item is complete."""

    item: ModelItem


@dataclass(frozen=True)
class RateLimits:
    """The provider's limits as its headers or events tell them."""

    values: Mapping[str, Any]


@dataclass(frozen=True)
class ModelNotice:
    """Something a person should know of how the model is reached; the response goes on."""

    message: str


@dataclass(frozen=True)
class AttemptEnded:
    """One HTTP or WebSocket attempt ended, well or badly. Comes before Completed, and before the error that is raised."""

    record: ModelRequestRecord


@dataclass(frozen=True)
class ResponseCompleted:
    """Last event of a good stream."""

    response_id: str
    usage: TokenUsage
    end_turn: bool | None = None
    """False: the model wants to go on although it called no tool."""


ModelEvent = (
    ResponseCreated
    | ItemAdded
    | TextDelta
    | ReasoningSummaryDelta
    | ToolInputDelta
    | ItemDone
    | RateLimits
    | ModelNotice
    | AttemptEnded
    | ResponseCompleted
)


class ModelError(Exception):
    """A model request failed for good at its layer. `retryable` speaks to the stream layer above."""

    def __init__(self, info: ErrorInfo, *, retry_after_s: float | None = None) -> None:
        super().__init__(info.message)
        self.info = info
        self.retry_after_s = retry_after_s

    @property
    def code(self) -> ErrorCode:
        """The error's class."""
        return self.info.code

    @property
    def retryable(self) -> bool:
        """Whether the same request may be sent again."""
        return self.info.retryable


class ModelClient(Protocol):
    """Speaks to a model provider. Closing the iterator cancels the upstream request."""

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The response's events. Ends after ResponseCompleted, or raises ModelError."""
        ...

    def prewarm(self, request: ModelRequest) -> None:
        """A request like this one, with an input, will come soon: get ready for it in the background, or do nothing.

        Never blocks, never raises, and never makes the request later than it would be without.
        """
        ...


# --- sandbox ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExecLimits:
    """Limits of one command. None: only the container's own."""

    wall_time_s: float | None = None
    cpu_s: int | None = None
    file_size_bytes: int | None = None
    address_space_bytes: int | None = None
    processes: int | None = None


@dataclass(frozen=True)
class SandboxExecRequest:
    """What was approved, byte for byte what runs."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    policy: SandboxPolicy
    tty: bool = False
    limits: ExecLimits = field(default_factory=ExecLimits)
    approval_id: str | None = None


@dataclass(frozen=True)
class ExitStatus:
    """How a command ended."""

    code: int
    """Exit code; 128 + signal when a signal killed it."""
    signal: int | None = None
    timed_out: bool = False
    oom_killed: bool = False
    wall_s: float = 0.0
    cpu_s: float = 0.0


@dataclass(frozen=True)
class PatchCall:
    """A command ran the `apply_patch` program of its box."""

    cwd: str
    """Absolute, as the program saw it."""
    patch: bytes


@dataclass(frozen=True)
class PatchReply:
    """What the program prints, and its exit code: 0 applied, 1 refused."""

    code: int
    stdout: str = ""
    stderr: str = ""


PatchHandler = Callable[[PatchCall], Awaitable[PatchReply]]
"""Answers one call. Cancelled when the program or the box is gone; calls may come at once."""


class SandboxError(Exception):
    """The sandbox could not do what was asked; the message is fit for the model and holds no host path."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info


class SandboxProcess(Protocol):
    """A command with its whole process tree."""

    async def read(self) -> bytes:
        """The next chunk of output (stdout and stderr merged in arrival order); b"" when it is over. Cancel-safe, loses nothing."""
        ...

    async def wait(self) -> ExitStatus:
        """How it ended. SandboxError when the box was lost."""
        ...

    async def write(self, data: bytes, *, eof: bool = False) -> None:
        """Write to its stdin; `eof` closes it afterwards. SandboxError when stdin is closed."""
        ...

    async def resize(self, rows: int, columns: int) -> None:
        """New size of its terminal; nothing without one."""
        ...

    async def kill(self, signal: int = 9) -> None:
        """Signal the whole tree, also what daemonised itself. Nothing when it has ended."""
        ...


@dataclass(frozen=True)
class FileContent:
    """A file in the box."""

    data: bytes
    mode: int
    """Permission bits."""


@dataclass(frozen=True)
class WriteFile:
    """Create or replace a file; parents are created."""

    path: str
    data: bytes
    mode: int | None = None
    """Permission bits; None: keep those of the file that is replaced, else 0o644."""


@dataclass(frozen=True)
class DeleteFile:
    """Remove a file."""

    path: str


FileOperation = WriteFile | DeleteFile


class Sandbox(Protocol):
    """A running box. Paths are as seen inside it. All raise SandboxError."""

    async def spawn(self, request: SandboxExecRequest, *, on_patch: PatchHandler | None = None) -> SandboxProcess:
        """Start a command. SandboxError with the reason when it can't start (no such directory, program or policy).

        `on_patch` answers the `apply_patch` program in this command's tree; without it the program refuses.
        """
        ...

    async def read_file(self, path: str, *, policy: SandboxPolicy, limit: int) -> FileContent | None:
        """A regular file below the readable roots; None when it does not exist. SandboxError: directory, escape, over `limit` bytes."""
        ...

    async def apply_files(self, operations: Sequence[FileOperation], *, policy: SandboxPolicy) -> None:
        """All of them or none. SandboxError: outside the writable roots or below a protected name, no space, a directory in the way."""
        ...

    async def close(self) -> None:
        """Kill everything and give the box back. Twice is harmless; never raises."""
        ...


class SandboxSource(Protocol):
    """Gives a turn its box: started in the background, waited for only when a tool needs it."""

    def prepare(self) -> None:
        """Begin to start the box if nobody did yet. Never blocks."""
        ...

    async def get(self) -> Sandbox:
        """The box, started if needed. SandboxError when there is none to be had."""
        ...

    async def instructions(self, folder: str = "") -> Sequence[tuple[str, str]]:
        """AGENTS.md files that apply in a folder of the repository, root first, as (path, text), read at the base commit."""
        ...

    async def base_file(self, path: str) -> bytes | None:
        """A file of the base commit by its path in the repository, at most 256 KiB; None when there is none. SandboxError."""
        ...


# --- end of a turn ------------------------------------------------------------------------------


@dataclass(frozen=True)
class TurnOutcome:
    """How a turn is about to end."""

    turn_id: str
    status: TurnStatus
    error: ErrorInfo | None
    usage: TokenUsage
    cost_usd: float | None
    last_agent_message: str | None
    changed_files: bool
    """Whether a tool may have changed the work tree."""
    kind: Literal["regular", "review", "compact", "user_shell"] = "regular"
    """Only regular turns speak for their task."""


class TurnGate(Protocol):
    """What must hold before a turn completes (patch and verification), and what is told when it ended."""

    async def before_complete(self, outcome: TurnOutcome) -> str | None:
        """None: complete. Text: goes to the model as a user message and the turn does another step."""
        ...

    async def at_end(self, outcome: TurnOutcome) -> Sequence[DurableMsg]:
        """Called once for every end, also a bad one; its events are committed together with the terminal event."""
        ...


# --- telemetry and time -------------------------------------------------------------------------


class Span(Protocol):
    """An open span."""

    def set(self, **attributes: str | int | float | bool | None) -> None:
        """Add attributes; None values are left out."""
        ...


class Telemetry(Protocol):
    """Spans of one turn. Never raises, never blocks."""

    def span(
        self, name: str, *, key: str, attributes: Mapping[str, str | int | float | bool] | None = None
    ) -> AbstractContextManager[Span]:
        """A span below the current one. `key` (item id, call id, …) decides its span id, so that it can be made again."""
        ...

    def context(self) -> TraceContext | None:
        """The current span as W3C context, to be sent on."""
        ...


class Clock(Protocol):
    """Time. Doubles advance it by hand."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...
