"""What a session is given: its configuration and its ports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

from patchyard.protocol.model_profiles import CompactionMethod, ModelProfile, PromptFamily
from patchyard.protocol.ops import TurnOverrides
from patchyard.protocol.policies import ApprovalPolicy, SandboxPolicy
from patchyard.protocol.tasks import HookEvent, HookSpec, TaskSpec

from .agents.port import AgentThreads
from .ports import Clock, ModelClient, SandboxSource, Telemetry, ThreadChannel, TurnGate
from .prompts import family_for
from .recall import ApprovalMemory


@dataclass(frozen=True)
class Ports:
    """The outside world of one session. See `ports`."""

    channel: ThreadChannel
    model: ModelClient
    sandbox: SandboxSource
    gate: TurnGate
    telemetry: Telemetry
    clock: Clock
    agents: AgentThreads | None = None
    """None: the agent can't start others."""
    approvals: ApprovalMemory | None = None
    """None: what people allow counts for the thread only."""


@dataclass(frozen=True)
class SessionConfig:
    """How one thread is run. Times are seconds."""

    tenant_id: str
    thread_id: str
    spec: TaskSpec
    model: str
    """The model of turns that name none (the specification's, or the service's default)."""
    task_id: str | None = None
    cwd: str = "/workspace"
    """The workspace as seen inside the box."""
    model_context_window: int = 272_000
    """Tokens; for models without a profile of their own."""
    models: Mapping[str, ModelProfile] = field(default_factory=dict)
    """By the model's name."""
    compaction: CompactionMethod = "local"
    """How a full context window is followed by a new one."""
    context_budget: float = 0.8
    """Share of the model's context window from which on it counts as full."""
    rollout_prefix: str = ""
    patchyard_version: str = ""
    recovery_reason: Literal["worker_lost", "hand_over"] = "worker_lost"
    """Why an unfinished turn is found on start, unless it was parked."""
    stream_retries: int = 5
    hold_time_s: float = 120
    """How long a question keeps its slot before the turn parks."""
    question_expiry_s: float = 24 * 3600
    """How long a question waits for an answer at all."""
    first_wait_s: float = 5
    """How long a session without an unfinished turn waits for its first submission."""
    linger_s: float = 0
    """How long a session waits for more submissions after a turn."""
    background_s: float = 600
    """How long a session stays for commands that outlive an interrupted turn."""
    interrupt_grace_s: float = 0.8
    """What an interrupted turn may still spend on its processes and on the gate's last word."""
    output_tokens: int = 10_000
    """Most tokens of one tool output."""
    sessions_limit: int = 64
    """Commands that may run at once in one thread."""
    agents_hold_s: float = 5
    """How long a turn that waits for an agent keeps its slot while that agent has none."""
    agents_limit: int = 4
    """Agents that a thread's agent may have open at once."""
    tenant_hooks: Mapping[HookEvent, Sequence[HookSpec]] = field(default_factory=dict)
    """Hooks of the tenant: they come before those of the task."""
    agent_depth: int = 0
    """0: a task's own agent; 1: one that it started; …"""
    agents_depth_limit: int = 1
    """Agents at this depth start no others."""
    secrets: tuple[str, ...] = ()
    """Values that must never leave the process."""
    command_env: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of commands; wins over the built-in values."""
    freeform_patch: bool = True
    """False: apply_patch is a function with a JSON argument, for models without custom tools."""

    def profile(self, model: str) -> ModelProfile:
        """What is known about a model."""
        return self.models.get(model) or ModelProfile(context_window=self.model_context_window)

    def context_limit(self, model: str) -> int:
        """Tokens from which on the model's context window counts as full."""
        return max(1, int(self.profile(model).context_window * self.context_budget))

    def family(self, model: str) -> PromptFamily:
        """Whose instructions the model is given."""
        return family_for(model, self.profile(model).family)


@dataclass(frozen=True)
class Settings:
    """Settings that a turn runs with."""

    model: str
    effort: str | None
    approval: ApprovalPolicy
    sandbox: SandboxPolicy
    cwd: str

    @classmethod
    def of(cls, config: SessionConfig) -> Self:
        """The thread's settings before any override."""
        spec = config.spec
        return cls(spec.model or config.model, spec.effort, spec.approval, spec.sandbox, config.cwd)

    def merged(self, overrides: TurnOverrides | None) -> "Settings":
        """With the overrides that are not None."""
        if overrides is None:
            return self
        return Settings(
            model=overrides.model or self.model,
            effort=overrides.effort or self.effort,
            approval=self.approval if overrides.approval is None else overrides.approval,
            sandbox=self.sandbox if overrides.sandbox is None else overrides.sandbox,
            cwd=overrides.cwd or self.cwd,
        )
