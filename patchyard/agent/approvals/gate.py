"""Whether a tool may do what the model asks: policy first, then a person, then what was allowed for the session."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, assert_never

from patchyard.agent.config import Settings
from patchyard.agent.errors import ToolError
from patchyard.agent.ports import Clock
from patchyard.policy import PathClass, decide_command, decide_patch, split_script
from patchyard.protocol.events import ExecApprovalRequest, PatchApprovalRequest
from patchyard.protocol.ids import new_id
from patchyard.protocol.items import FileUpdate
from patchyard.protocol.ops import ApprovalDecision
from patchyard.protocol.rollout_lines import ApprovedCommand, ApprovedRules

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


class Approvals:
    """The first gate of a thread. `on_change` is called when a person allowed something for the thread."""

    def __init__(
        self,
        questions: Questions,
        clock: Clock,
        *,
        approved: ApprovedRules | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._questions = questions
        self._clock = clock
        self._on_change = on_change
        self.hooks: PermissionHooks | None = None
        """May answer in a person's place."""
        known = approved or ApprovedRules()
        # Dicts keep the order in which things were allowed: the record of them stays the same over restarts.
        self._commands = dict.fromkeys(known.commands)
        self._paths = dict.fromkeys(known.paths)
        self._prefixes = dict.fromkeys(known.prefixes)

    def approved(self) -> ApprovedRules:
        """What was allowed for the thread so far."""
        return ApprovedRules(commands=tuple(self._commands), paths=tuple(self._paths), prefixes=tuple(self._prefixes))

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
                if key in self._commands or (not ask.escalate and self._allowed_by_prefix(ask.script)):
                    return None
            case _:
                assert_never(verdict.action)
        request = ExecApprovalRequest(
            approval_id=new_id(self._clock.now_ms()),
            item_id=ask.item_id,
            command=ask.argv,
            cwd=ask.cwd,
            reason=ask.justification or verdict.reason,
            proposed_prefix_rule=ask.prefix_rule,
        )
        asked = self._questions.asked_before(request)
        if asked is None and await self._hooks_allow("exec_command", ask.item_id, ask.script, request.reason):
            return question_id(request)
        answer = await self._ask(asked or request, what="command")
        if answer.decision is ApprovalDecision.ACCEPT_FOR_SESSION:
            self._commands[key] = None
        if answer.prefix_rule:
            self._prefixes[answer.prefix_rule] = None
        if answer.decision is ApprovalDecision.ACCEPT_FOR_SESSION or answer.prefix_rule:
            self._on_change()
        return question_id(asked or request)

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
                if self._paths.keys() >= set(paths):
                    return
            case _:
                assert_never(verdict.action)
        request = PatchApprovalRequest(
            approval_id=new_id(self._clock.now_ms()), item_id=item_id, changes=tuple(changes), reason=verdict.reason
        )
        asked = self._questions.asked_before(request)
        touched = "\n".join(paths)
        if asked is None and await self._hooks_allow("apply_patch", item_id, touched, verdict.reason):
            return
        answer = await self._ask(asked or request, what="patch", can_park=can_park)
        if answer.decision is ApprovalDecision.ACCEPT_FOR_SESSION:
            self._paths |= dict.fromkeys(paths)
            self._on_change()

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

    def _allowed_by_prefix(self, script: str) -> bool:
        commands = split_script(script)
        return commands is not None and all(
            any(command[: len(prefix)] == prefix for prefix in self._prefixes) for command in commands
        )
