"""The first gate: approval policy x sandbox policy -> run, ask or reject. The table is in docs/subsystems/agent.md."""

from dataclasses import dataclass
from typing import Literal, assert_never

from patchyard.protocol.policies import (
    ApprovalMode,
    ApprovalPolicy,
    DangerFullAccess,
    ExternalSandbox,
    GranularApproval,
    SandboxPolicy,
)

from .commands import has_forced_rm, is_known_safe
from .paths import PathClass


@dataclass(frozen=True)
class Verdict:
    """What to do. `reason` is for the person who is asked or for the model that is refused."""

    action: Literal["run", "ask", "reject"]
    reason: str = ""


RUN = Verdict("run")

_FORCED_RM = "`rm` with a force option deletes without asking"
_SAFER = "Delete the named files without -f, or leave them where they are."


def decide_command(script: str, *, approval: ApprovalPolicy, sandbox: SandboxPolicy, escalate: bool = False) -> Verdict:
    """Whether a shell script may run. `escalate`: the model asked to run it outside the sandbox's restrictions."""
    if has_forced_rm(script):
        return _ask_or_reject(approval, f"{_FORCED_RM}.", f"Refused: {_FORCED_RM}, and nobody can be asked. {_SAFER}")
    if approval is ApprovalMode.UNTRUSTED:
        if is_known_safe(script) and not escalate:
            return RUN
        return Verdict("ask", "Only commands that are known to read run without a question here.")
    if escalate and not (_is_open(sandbox) and approval is not ApprovalMode.NEVER):
        return _ask_or_reject(
            approval,
            "The agent asks to run this outside the sandbox's restrictions.",
            "Refused: this task may not ask for wider permissions. Run it without require_escalated, or find another way.",
        )
    return RUN


def decide_patch(paths: PathClass, *, approval: ApprovalPolicy) -> Verdict:
    """Whether a patch may be written. `paths` is the worst class among the files that it touches."""
    if approval is ApprovalMode.UNTRUSTED:
        return Verdict("ask", "Every change of a file needs a question here.")
    match paths:
        case PathClass.WRITABLE:
            return RUN
        case PathClass.READ_ONLY_SANDBOX:
            why = "the sandbox is read-only"
        case PathClass.PROTECTED:
            why = "it touches a protected name (.git, .patchyard, .codex, .agents, .aws)"
        case PathClass.OUTSIDE:
            why = "it writes outside the workspace"
        case _:
            assert_never(paths)
    return _ask_or_reject(
        approval, f"The patch needs a decision: {why}.", f"Refused: {why}, and nobody can be asked. Nothing was changed."
    )


def _is_open(sandbox: SandboxPolicy) -> bool:
    return isinstance(sandbox, DangerFullAccess | ExternalSandbox)


def _ask_or_reject(approval: ApprovalPolicy, question: str, refusal: str) -> Verdict:
    match approval:
        case ApprovalMode.NEVER:
            return Verdict("reject", refusal)
        case ApprovalMode.ON_REQUEST | ApprovalMode.UNTRUSTED:
            return Verdict("ask", question)
        case GranularApproval():
            return Verdict("ask", question) if approval.sandbox_approval else Verdict("reject", refusal)
        case _:
            assert_never(approval)
