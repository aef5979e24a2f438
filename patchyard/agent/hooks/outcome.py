"""What a hook's exit code and output mean. An answer that is not understood is a failure, never silently a yes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from patchyard.protocol.events import HookSource
from patchyard.protocol.tasks import HookEvent

from .process import HookRun

_BLOCK = 2
"""Exit code that says no; the reason is on the error output."""
_BLOCKING = frozenset(HookEvent) - {HookEvent.SESSION_START, HookEvent.POST_COMPACT}
_TEXT_IS_CONTEXT = frozenset({HookEvent.SESSION_START, HookEvent.USER_PROMPT_SUBMIT})
_CONTEXT = _TEXT_IS_CONTEXT | {HookEvent.PRE_TOOL_USE, HookEvent.POST_TOOL_USE}
_LONGEST_REASON = 4000
"""Characters of a reason or message."""


@dataclass(frozen=True)
class HookResult:
    """What one hook said."""

    outcome: Literal["ok", "blocked", "failed", "timed_out"]
    message: str | None = None
    block: str | None = None
    stop: str | None = None
    context: str | None = None
    warning: str | None = None
    permission: Literal["allow", "deny"] | None = None
    updated_input: dict[str, Any] | None = None
    source: HookSource | None = None


@dataclass(frozen=True)
class Verdict:
    """What all hooks of an event said together: the first no wins."""

    block: str | None = None
    """Why it may not go on, where the event can be blocked."""
    stop: str | None = None
    """Why the turn is to end here."""
    contexts: tuple[str, ...] = ()
    """Texts for the model."""
    permission: Literal["allow", "deny"] | None = None
    updated_input: dict[str, Any] | None = None
    """The tenant's where it gave one, else that of the last hook that did."""
    updated_by: HookSource | None = None
    failures: tuple[str, ...] = ()

    def then(self, later: "Verdict") -> "Verdict":
        """This one, and what was said afterwards about the input that it left."""
        updated = later if later.updated_input is not None else self
        return replace(
            self,
            block=self.block if self.block is not None else later.block,
            stop=self.stop if self.stop is not None else later.stop,
            contexts=tuple(dict.fromkeys((*self.contexts, *later.contexts))),
            updated_input=updated.updated_input,
            updated_by=updated.updated_by,
            failures=(*self.failures, *later.failures),
        )


NOTHING = Verdict()


class _Decision(BaseModel):
    model_config = ConfigDict(extra="forbid")
    behavior: Literal["allow", "deny"]
    message: str | None = None


class _Specific(BaseModel):
    model_config = ConfigDict(extra="forbid")
    hookEventName: str
    additionalContext: str | None = None
    permissionDecision: Literal["allow", "deny"] | None = None
    permissionDecisionReason: str | None = None
    updatedInput: dict[str, Any] | None = None
    decision: _Decision | None = None


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    go_on: bool = Field(default=True, alias="continue")
    stopReason: str | None = None
    systemMessage: str | None = None
    decision: Literal["block"] | None = None
    reason: str | None = None
    hookSpecificOutput: _Specific | None = None


def interpret(event: HookEvent, run: HookRun, *, timeout_s: float) -> HookResult:
    """The result of one hook."""
    if run.error is not None:
        return HookResult("failed", f"It did not run: {run.error}")
    if run.timed_out:
        return HookResult("timed_out", f"It was stopped after {timeout_s:g} seconds.")
    if run.code == _BLOCK and event in _BLOCKING:
        if not run.stderr:
            return HookResult("failed", "Exit code 2 blocks, but the reason is missing on its error output.")
        return _blocked(event, run.stderr)
    if run.code != 0:
        tail = f" {run.stderr[-_LONGEST_REASON:]}" if run.stderr else ""
        return HookResult("failed", f"It ended with exit code {run.code}.{tail}")
    if not run.stdout.startswith("{"):
        return HookResult("ok", context=run.stdout if event in _TEXT_IS_CONTEXT and run.stdout else None)
    try:
        answer = _Answer.model_validate_json(run.stdout)
        return _understood(event, answer)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"]) or "the whole"
        return HookResult("failed", f"Its answer can't be used: {where}: {problem['msg']}")
    except _NotOffered as error:
        return HookResult("failed", f"Its answer can't be used: {error}")


class _NotOffered(Exception):
    """A field that has no meaning at this event."""


def _understood(event: HookEvent, answer: _Answer) -> HookResult:
    specific = answer.hookSpecificOutput
    if specific is not None:
        _check(event, specific)
    if not answer.go_on and event in (HookEvent.PRE_TOOL_USE, HookEvent.PERMISSION_REQUEST):
        raise _NotOffered(f"`continue: false` is not offered for {event.value}; deny the call instead")
    if answer.decision == "block" and (event not in _BLOCKING or not (answer.reason or "").strip()):
        raise _NotOffered(f"`decision: block` needs a reason and an event that can be blocked, not {event.value}")
    warning = _cut(answer.systemMessage)
    if answer.decision == "block":
        context = specific.additionalContext if specific is not None else None
        return replace(_blocked(event, answer.reason or "", warning=warning), context=context or None)
    if not answer.go_on:
        stop = _cut(answer.stopReason) or "no reason was given"
        return HookResult("blocked", stop, stop=stop, warning=warning)
    if specific is None:
        return HookResult("ok", warning=warning)
    permission = specific.permissionDecision
    reason = _cut(specific.permissionDecisionReason)
    if specific.decision is not None:
        permission, reason = specific.decision.behavior, _cut(specific.decision.message)
    if permission == "deny":
        reason = reason or "no reason was given"
        return HookResult("blocked", reason, block=reason, permission="deny", warning=warning)
    return HookResult(
        "ok",
        context=specific.additionalContext or None,
        warning=warning,
        permission=permission,
        updated_input=specific.updatedInput,
    )


def _check(event: HookEvent, specific: _Specific) -> None:
    if specific.hookEventName != event.value:
        raise _NotOffered(f"hookEventName is {specific.hookEventName}, but the event is {event.value}")
    offered = {
        "permissionDecision": event is HookEvent.PRE_TOOL_USE,
        "updatedInput": event is HookEvent.PRE_TOOL_USE,
        "decision": event is HookEvent.PERMISSION_REQUEST,
        "additionalContext": event in _CONTEXT,
    }
    for name, allowed in offered.items():
        if getattr(specific, name) is not None and not allowed:
            raise _NotOffered(f"`{name}` is not offered for {event.value}")


def closed(result: HookResult) -> HookResult:
    """The result of a guard that must not be got around by making it fail: a failure is a no."""
    if result.outcome not in ("failed", "timed_out"):
        return result
    return replace(result, block=f"a hook of the tenant failed, and so it counts as refused: {result.message}")


def _blocked(event: HookEvent, reason: str, *, warning: str | None = None) -> HookResult:
    reason = _cut(reason) or ""
    permission: Literal["deny"] | None = "deny" if event is HookEvent.PERMISSION_REQUEST else None
    return HookResult("blocked", reason, block=reason, permission=permission, warning=warning)


def _cut(text: str | None) -> str | None:
    text = (text or "").strip()
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…" if text else None


def merge(results: Sequence[HookResult]) -> Verdict:
    """One verdict, in the order of configuration."""
    permissions = [r.permission for r in results if r.permission is not None]
    updates = [r for r in results if r.updated_input is not None]
    update = next((r for r in reversed(updates) if r.source == "tenant"), updates[-1] if updates else None)
    return Verdict(
        block=next((r.block for r in results if r.block is not None), None),
        stop=next((r.stop for r in results if r.stop is not None), None),
        contexts=tuple(r.context for r in results if r.context),
        permission="deny" if "deny" in permissions else "allow" if permissions else None,
        updated_input=update.updated_input if update is not None else None,
        updated_by=update.source if update is not None else None,
        failures=tuple(r.message or "" for r in results if r.outcome in ("failed", "timed_out")),
    )


def encode(fields: dict[str, Any]) -> bytes:
    """The JSON that a hook reads."""
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")
