"""The hooks of a thread: one method per event. Without hooks every method returns at once and touches no box."""

import asyncio
import contextlib
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidationError, field_validator

from patchyard.agent.config import Ports, SessionConfig, Settings
from patchyard.agent.environment import command_environment
from patchyard.agent.journal import Journal
from patchyard.agent.ports import LeaseLost, Sandbox, SandboxError
from patchyard.agent.tools.output import truncate
from patchyard.protocol._model import WireModel
from patchyard.protocol.events import HookCompleted, HookSource, HookStarted, Warning_
from patchyard.protocol.model_items import InputText, Message
from patchyard.protocol.policies import ApprovalMode, DangerFullAccess, ExternalSandbox
from patchyard.protocol.tasks import HookEvent, HookSpec, check_matchers, matcher_fits

from .outcome import NOTHING, HookResult, Verdict, closed, encode, interpret, merge
from .process import HookCommand, run_hook

REPOSITORY_FILE = ".patchyard/hooks.toml"
_CONTEXT_TOKENS = 2_500
"""Most of what one hook may tell the model."""
_TOLD_NAMES = {"exec_command": "Bash"}
"""Tool names as Codex tells them to hooks: people bring theirs along. A matcher may name either."""

Source = Literal["startup", "resume", "compact"]
Trigger = Literal["manual", "auto"]


class _RepositoryHooks(WireModel):
    hooks: dict[HookEvent, tuple[HookSpec, ...]] = Field(default_factory=dict)

    @field_validator("hooks")
    @classmethod
    def _matchers_can_be_used(cls, hooks: dict[HookEvent, tuple[HookSpec, ...]]) -> dict[HookEvent, tuple[HookSpec, ...]]:
        check_matchers(hook.matcher for named in hooks.values() for hook in named)
        return hooks


class _KnownHook(NamedTuple):
    source: HookSource
    spec: HookSpec


class Hooks:
    """See the module. `settings` gives those of the running turn."""

    def __init__(self, config: SessionConfig, ports: Ports, journal: Journal, settings: Callable[[], Settings]) -> None:
        self._config = config
        self._ports = ports
        self._journal = journal
        self._settings = settings
        self._known: Mapping[HookEvent, Sequence[_KnownHook]] | None = None
        self.compaction = CompactionAnswers(self)

    # --- events

    async def session_start(self, source: Source) -> Verdict:
        """Before the first request of a session, and of a window after a compaction. May stop the turn, and add context."""
        return await self._run(HookEvent.SESSION_START, {"source": source}, subject=source)

    async def user_prompt(self, prompt: str) -> Verdict:
        """Before a user's text is given to the model. May refuse it, and add context."""
        return await self._run(HookEvent.USER_PROMPT_SUBMIT, {"prompt": prompt})

    async def before_tool(self, name: str, tool_input: Any, call_id: str) -> Verdict:
        """Before a tool runs. May refuse it or change its input.

        An input that a hook of the task or the repository changed is shown to the tenant's hooks once more: theirs is the last
        word on what runs.
        """
        verdict = await self._run(HookEvent.PRE_TOOL_USE, _tool(name, tool_input, call_id), tool=name)
        if verdict.block is not None or verdict.updated_input is None or verdict.updated_by == "tenant":
            return verdict
        fields = _tool(name, verdict.updated_input, call_id)
        return verdict.then(await self._run(HookEvent.PRE_TOOL_USE, fields, tool=name, only="tenant"))

    async def after_tool(self, name: str, tool_input: Any, call_id: str, response: str) -> Verdict:
        """After a tool ran. A refusal replaces what the model reads of it."""
        fields = {**_tool(name, tool_input, call_id), "tool_response": response}
        return await self._run(HookEvent.POST_TOOL_USE, fields, tool=name)

    async def permission(self, name: str, tool_input: Any, call_id: str) -> Verdict:
        """Before a person is asked. A hook that fails is a no."""
        verdict = await self._run(HookEvent.PERMISSION_REQUEST, _tool(name, tool_input, call_id), tool=name)
        if verdict.failures and verdict.permission != "deny":
            why = f"a PermissionRequest hook failed, and so it counts as refused: {verdict.failures[0]}"
            return Verdict(block=why, permission="deny")
        return verdict

    async def stop(self, last_message: str | None, *, active: bool) -> Verdict:
        """Before a turn completes. A refusal gives the model its reason and another round."""
        return await self._run(HookEvent.STOP, {"stop_hook_active": active, "last_assistant_message": last_message})

    async def before_compaction(self, trigger: Trigger) -> str | None:
        """Text: the compaction is refused, for this reason."""
        verdict = await self._run(HookEvent.PRE_COMPACT, {"trigger": trigger}, subject=trigger)
        return verdict.block or verdict.stop

    async def after_compaction(self, trigger: Trigger) -> None:
        """The new window is open: PostCompact, then SessionStart with the source `compact`."""
        await self._run(HookEvent.POST_COMPACT, {"trigger": trigger}, subject=trigger)
        started = await self.session_start("compact")
        if started.contexts:
            self._journal.post(*self.notes(started))

    def notes(self, verdict: Verdict) -> tuple[Message, ...]:
        """What the hooks told the model, as messages."""
        texts = [truncate(text, _CONTEXT_TOKENS) for text in verdict.contexts]
        return tuple(Message(role="developer", content=(InputText(text=text),)) for text in texts)

    # --- running

    async def _run(
        self,
        event: HookEvent,
        fields: Mapping[str, Any],
        *,
        subject: str = "",
        tool: str = "",
        only: HookSource | None = None,
    ) -> Verdict:
        subjects = {tool, _told_name(tool)} if tool else {subject}
        hooks = [hook for hook in await self._hooks(event) if only in (None, hook.source) and _fits(hook.spec, subjects)]
        if not hooks:
            return NOTHING
        started = [HookStarted(event=event.value, command=hook.spec.command, source=hook.source) for hook in hooks]
        self._journal.post(*started)
        stdin = encode({**self._common(event), **fields})
        results = await asyncio.gather(*(self._one(event, hook, stdin) for hook in hooks))
        for result in results:
            if result.warning:
                self._journal.post(Warning_(message=f"{event.value} hook: {result.warning}"))
        return merge(results)

    async def _one(self, event: HookEvent, known: _KnownHook, stdin: bytes) -> HookResult:
        hook, settings = known.spec, self._settings()
        env = {**command_environment(self._config, settings.sandbox), "PATCHYARD_HOOK_EVENT": event.value}
        command = HookCommand(hook.command, settings.cwd, env, settings.sandbox, hook.timeout_s)
        result = HookResult("failed", "It was cut off by the end of the turn.")
        try:
            box = await self._box()
            if isinstance(box, SandboxError):
                result = HookResult("failed", f"It did not run: {box.info.message}")
            else:
                run = await run_hook(box, command, stdin, self._ports.clock)
                result = interpret(event, run, timeout_s=hook.timeout_s)
            if known.source == "tenant" and event is HookEvent.PRE_TOOL_USE:
                result = closed(result)
        finally:
            done = HookCompleted(
                event=event.value,
                command=hook.command,
                outcome=result.outcome,
                message=result.message,
                source=known.source,
            )
            with contextlib.suppress(LeaseLost):
                self._journal.post(done)
        return replace(result, source=known.source)

    async def _box(self) -> Sandbox | SandboxError:
        try:
            return await self._ports.sandbox.get()
        except SandboxError as error:
            return error

    def _common(self, event: HookEvent) -> dict[str, Any]:
        settings = self._settings()
        free = settings.approval is ApprovalMode.NEVER and isinstance(settings.sandbox, DangerFullAccess | ExternalSandbox)
        turn = {} if event is HookEvent.SESSION_START else {"turn_id": self._journal.turn_id}
        return {
            "session_id": self._config.thread_id,
            **turn,
            "transcript_path": None,
            "cwd": settings.cwd,
            "hook_event_name": event.value,
            "model": settings.model,
            "permission_mode": "bypassPermissions" if free else "default",
        }

    async def _hooks(self, event: HookEvent) -> Sequence[_KnownHook]:
        """In the order in which they count: the tenant's, the task's, the repository's."""
        if self._known is None:
            spec = self._config.spec
            sources: dict[HookSource, Mapping[HookEvent, Sequence[HookSpec]]] = {
                "tenant": self._config.tenant_hooks,
                "task": spec.hooks,
                "repository": await self._from_repository() if spec.repository_hooks else {},
            }
            self._known = {
                e: [_KnownHook(source, hook) for source, hooks in sources.items() for hook in hooks.get(e, ())]
                for e in HookEvent
            }
        return self._known[event]

    async def _from_repository(self) -> Mapping[HookEvent, Sequence[HookSpec]]:
        """Those of the base commit: what an agent writes later does not change them."""
        try:
            data = await self._ports.sandbox.base_file(REPOSITORY_FILE)
            if data is None:
                return {}
            return _RepositoryHooks.model_validate(tomllib.loads(data.decode())).hooks
        except SandboxError as error:
            problem = error.info.message
        except (UnicodeDecodeError, tomllib.TOMLDecodeError, ValidationError) as error:
            problem = str(error).splitlines()[0]
        self._journal.post(Warning_(message=f"The hooks of {REPOSITORY_FILE} are not used: {problem}"))
        return {}


class CompactionAnswers:
    """What the compaction asks before and tells after."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    async def before(self, trigger: Trigger) -> str | None:
        """Text: the compaction is refused, for this reason."""
        return await self._hooks.before_compaction(trigger)

    async def after(self, trigger: Trigger) -> None:
        """The new window is open and recorded."""
        await self._hooks.after_compaction(trigger)


def _tool(name: str, tool_input: Any, call_id: str) -> dict[str, Any]:
    return {"tool_name": _told_name(name), "tool_input": tool_input, "tool_use_id": call_id}


def _told_name(tool: str) -> str:
    return _TOLD_NAMES.get(tool, tool)


def _fits(hook: HookSpec, subjects: Collection[str]) -> bool:
    return any(matcher_fits(hook.matcher, subject) for subject in subjects)
