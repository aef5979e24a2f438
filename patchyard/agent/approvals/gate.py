"""Whether a tool may do what the model asks: policy first, then a person, then what was allowed for the session."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, assert_never

from patchyard.agent.config import Settings
from patchyard.agent.errors import ToolError
from patchyard.agent.ports import Clock
from patchyard.policy import PathClass, decide_command, decide_patch
from patchyard.protocol.approvals import ApprovalRule, ApprovedCommand, SessionScope
from patchyard.protocol.events import ExecApprovalRequest, PatchApprovalRequest
from patchyard.protocol.ids import new_id
from patchyard.protocol.items import FileUpdate
from patchyard.protocol.ops import ApprovalDecision

from .memory import Allowed
from .questions import Answer, Question, Questions, question_id


class Declined(ToolError):
    """Policy or a person said no. The message is the reason, for the model."""


@dataclass(frozen=True)
class CommandAsk:
    """A command that wants to run."""

    item_id: str
    script: str
    argv: tuple[str, ...]
    cwd: str
    escalate: bool
    justification: str | None
    prefix_rule: tuple[str, ...] | None


class PermissionVerdict(Protocol):
    """What hooks say to a question."""

    @property
    def permission(self) -> Literal["allow", "deny"] | None:
        """None: a person is asked."""
        ...

    @property
    def block(self) -> str | None:
        """Why not."""
        ...


class PermissionHooks(Protocol):
    """Hooks that may answer questions. Implemented by `hooks`."""

    async def permission(self, name: str, tool_input: Any, call_id: str) -> PermissionVerdict:
        """The answer of the hooks, before a person is asked."""
        ...


class Allowing(NamedTuple):
    """A person allowed something for longer than one call."""

    question: ExecApprovalRequest | PatchApprovalRequest
    rules: Sequence[ApprovalRule]
    """What of it may be remembered beyond the thread."""
    by: str | None


class Approvals:
    """The first gate of a thread. `on_allowed` is called when a person allowed something for longer than one call."""

    def __init__(
        self,
        questions: Questions,
        clock: Clock,
        allowed: Allowed,
        *,
        on_allowed: Callable[[Allowing], None] = lambda _: None,
    ) -> None:
        self._questions = questions
        self._clock = clock
        self._on_allowed = on_allowed
        self.allowed = allowed
        self.hooks: PermissionHooks | None = None
        """May answer in a person's place."""

    async def command(self, ask: CommandAsk, settings: Settings) -> str | None:
        """The approval's id, None when none was needed. Declined with the reason otherwise."""
        verdict = decide_command(ask.script, approval=settings.approval, sandbox=settings.sandbox, escalate=ask.escalate)
        match verdict.action:
            case "run":
                return None
            case "reject":
                raise Declined(verdict.reason)
            case "ask":
                key = ApprovedCommand(script=ask.script, cwd=ask.cwd, escalated=ask.escalate)
            case _:
                assert_never(verdict.action)
        request = ExecApprovalRequest(
            approval_id=new_id(self._clock.now_ms()),
            item_id=ask.item_id,
            command=ask.argv,
            cwd=ask.cwd,
            reason=ask.justification or verdict.reason,
            proposed_prefix_rule=ask.prefix_rule,
            session_scope=self._scope(lifts_sandbox=ask.escalate),
        )
        asked = self._questions.asked_before(request)
        if asked is None:
            if await self.allowed.command(key):
                return None
            if await self._hooks_allow("exec_command", ask.item_id, ask.script, request.reason):
                return question_id(request)
        question = asked or request
        answer = await self._ask(question, what="command")
        rules = self._command_rules(question, answer, key)
        if rules is not None:
            self._on_allowed(Allowing(question, rules, answer.by))
        return question_id(question)

    def _command_rules(
        self, question: ExecApprovalRequest, answer: Answer, key: ApprovedCommand
    ) -> Sequence[ApprovalRule] | None:
        """What an answer allows beyond the thread; None: nothing beyond this call."""
        for_session = answer.decision is ApprovalDecision.ACCEPT_FOR_SESSION
        rules: list[ApprovalRule] = []
        if for_session:
            rules += self.allowed.allow_command(key)
        if answer.prefix_rule:
            rules += self.allowed.allow_prefix(answer.prefix_rule)
        if not for_session and not answer.prefix_rule:
            return None
        # A yes reaches no further than the question said.
        return rules if question.session_scope == "repository" else ()

    def _scope(self, *, lifts_sandbox: bool) -> SessionScope:
        return "repository" if self.allowed.remembers and not lifts_sandbox else "thread"

    async def patch(
        self,
        item_id: str,
        changes: Sequence[FileUpdate],
        paths: Sequence[str],
        worst: PathClass,
        settings: Settings,
        *,
        can_park: bool = True,
    ) -> None:
        """Return when the patch may be written. Declined with the reason otherwise. `paths`: absolute, all that it touches."""
        verdict = decide_patch(worst, approval=settings.approval)
        match verdict.action:
            case "run":
                return
            case "reject":
                raise Declined(verdict.reason)
            case "ask":
                inside = worst is PathClass.WRITABLE
            case _:
                assert_never(verdict.action)
        request = PatchApprovalRequest(
            approval_id=new_id(self._clock.now_ms()),
            item_id=item_id,
            changes=tuple(changes),
            reason=verdict.reason,
            session_scope=self._scope(lifts_sandbox=not inside),
        )
        asked = self._questions.asked_before(request)
        if asked is None:
            if await self.allowed.paths(paths, inside=inside):
                return
            if await self._hooks_allow("apply_patch", item_id, "\n".join(paths), verdict.reason):
                return
        question = asked or request
        answer = await self._ask(question, what="patch", can_park=can_park)
        if answer.decision is ApprovalDecision.ACCEPT_FOR_SESSION:
            rules = self.allowed.allow_paths(paths, inside=inside and question.session_scope == "repository")
            self._on_allowed(Allowing(question, rules, answer.by))

    async def _hooks_allow(self, tool: str, call_id: str, command: str, reason: str | None) -> bool:
        """Whether PermissionRequest hooks say yes. Declined when one says no; False: a person decides."""
        if self.hooks is None:
            return False
        verdict = await self.hooks.permission(tool, {"command": command, "description": reason}, call_id)
        if verdict.permission == "deny":
            raise Declined(f"A PermissionRequest hook refused this: {verdict.block}. It was not done. Find another way.")
        return verdict.permission == "allow"

    async def _ask(self, request: Question, *, what: str, can_park: bool = True) -> Answer:
        answer = await self._questions.ask(request, can_park=can_park)
        if answer.accepted:
            return answer
        nothing = "It was not run." if what == "command" else "Nothing was changed."
        if answer.decision == "expired":
            raise Declined(f"Nobody answered the question about this {what} in time. {nothing} Find another way or finish.")
        message = f" They say: {answer.message}" if answer.message else ""
        raise Declined(f"A person declined this {what}. {nothing} Do not try it again in another form.{message}")
