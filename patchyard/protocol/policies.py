"""What an agent may do: approval policy, sandbox policy, budgets."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from ._model import WireModel


class ApprovalMode(StrEnum):
    """When a person is asked. `untrusted`: known-safe read-only commands run, everything else asks."""

    UNTRUSTED = "untrusted"
    ON_REQUEST = "on-request"
    NEVER = "never"


class GranularApproval(WireModel):
    """on-request with a switch per kind of question; a switch that is off means: refuse instead of ask."""

    type: Literal["granular"] = "granular"
    sandbox_approval: bool
    rules: bool
    mcp_elicitations: bool
    request_permissions: bool = False
    skill_approval: bool = False


ApprovalPolicy = ApprovalMode | GranularApproval


class ReadOnly(WireModel):
    """Commands may read everything in the box and write only to its scratch space."""

    type: Literal["read-only"] = "read-only"


class WorkspaceWrite(WireModel):
    """Commands may write in the workspace, except below protected names (`.git`, `.patchyard`, `.codex`, `.agents`, `.aws`)."""

    type: Literal["workspace-write"] = "workspace-write"
    writable_roots: tuple[str, ...] = ()
    """Further absolute paths inside the box that may be written."""
    network_access: bool = False
    """True: the gateway's allow list applies. False: no way out at all."""


class DangerFullAccess(WireModel):
    """No restriction per command; the container itself stays hardened."""

    type: Literal["danger-full-access"] = "danger-full-access"


class ExternalSandbox(WireModel):
    """Somebody else confines the commands; Patchyard adds nothing per command."""

    type: Literal["external-sandbox"] = "external-sandbox"
    network_access: bool = False


SandboxPolicy = Annotated[ReadOnly | WorkspaceWrite | DangerFullAccess | ExternalSandbox, Field(discriminator="type")]


class BudgetName(StrEnum):
    """The spend budgets of a turn, by the name of their limit in Budgets."""

    MODEL_REQUESTS = "model_requests"
    TOOL_CALLS = "tool_calls"
    TOKENS = "tokens"
    WALL_TIME_S = "wall_time_s"
    COST_USD = "cost_usd"


Count = Annotated[int, Field(ge=1, le=2**63 - 1)]
"""A limit of something that is counted. What is above is no budget, and no number that every program can read."""


class BudgetLimits(WireModel):
    """Limits that take the place of those in Budgets. None: as it is."""

    model_requests: Count | None = None
    tool_calls: Count | None = None
    tokens: Count | None = None
    wall_time_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    cost_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    def named(self) -> dict[BudgetName, int | float]:
        """Those that are given."""
        return {name: limit for name in BudgetName if (limit := getattr(self, name.value)) is not None}

    def over(self, other: "BudgetLimits") -> "BudgetLimits":
        """Both together; where both name a limit, this one's."""
        return other.model_copy(update=self.model_dump(exclude_none=True))


class Budgets(WireModel):
    """Spend budgets of one turn. None: no limit of that kind. `when_spent` says what happens at a limit."""

    model_requests: Count | None = 200
    tool_calls: Count | None = None
    tokens: Count | None = None
    """Input plus output tokens over all requests of the turn."""
    wall_time_s: float | None = Field(default=3600, gt=0)
    """Seconds that a worker has the turn, over all its segments: time parked does not count."""
    cost_usd: float | None = Field(default=None, gt=0)
    """Counts only requests whose model has a price in the provider's configuration."""
    when_spent: Literal["ask", "end"] | None = None
    """`ask`: a person is asked for more, and the turn parks until they answer. `end`: the turn ends as `budget_exceeded`.
    None: `ask`, but `end` where the approval policy is `never`."""

    def raised(self, limits: BudgetLimits) -> "Budgets":
        """With these limits in place of its own."""
        return self.model_copy(update=limits.model_dump(exclude_none=True))
