"""What the model is told about its surroundings: everything once, later only what changed."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, assert_never

from patchyard.agent.config import Settings
from patchyard.agent.prompts import permission_texts
from patchyard.protocol.model_items import InputText, Message
from patchyard.protocol.policies import (
    ApprovalMode,
    DangerFullAccess,
    ExternalSandbox,
    GranularApproval,
    ReadOnly,
    WorkspaceWrite,
)
from patchyard.protocol.rollout_lines import WorldState

IMAGES = "images"
"""Key of the world state: whether this window's prompt shows images."""
AGENTS_MD_BYTES = 32 * 1024
"""Budget of all AGENTS.md files together."""


@dataclass(frozen=True)
class Surroundings:
    """Texts for the model; a text that changes is told again."""

    permissions: str
    environment: str
    agents_md: str
    images: bool
    """Whether the model can read images."""


@dataclass(frozen=True)
class Told:
    """What to append to the history, and the record of it. Both empty when nothing changed."""

    items: tuple[Message, ...]
    record: WorldState | None


def look(settings: Settings, instructions: Sequence[tuple[str, str]], now_ms: int, *, images: bool = True) -> Surroundings:
    """The surroundings as they are."""
    told = agents_md(instructions, settings.cwd)
    return Surroundings(_permissions(settings), _environment(settings, now_ms), told, images)


def tell(now: Surroundings, known: dict[str, Any] | None) -> Told:
    """What the model has to be told. `known` is the recorded world state, None in a fresh window."""
    state = {
        "permissions": now.permissions,
        "environment": now.environment,
        "agents_md": hashlib.sha256(now.agents_md.encode()).hexdigest() if now.agents_md else "",
        IMAGES: now.images,
    }
    if known is None:
        user = [text for text in (now.agents_md, now.environment) if text]
        return Told((_message("developer", now.permissions), _message("user", *user)), WorldState(full=True, state=state))
    changed = {key: value for key, value in state.items() if known.get(key) != value}
    if not changed:
        return Told((), None)
    items = []
    if "permissions" in changed:
        items.append(_message("developer", f"What you may do has changed. From now on:\n{now.permissions}"))
    user = [getattr(now, key) for key in ("agents_md", "environment") if key in changed]
    if any(user):
        items.append(_message("user", *[text for text in user if text]))
    return Told(tuple(items), WorldState(full=False, state=changed))


def agents_md(instructions: Sequence[tuple[str, str]], cwd: str) -> str:
    """The repository's AGENTS.md files, root first, within the budget; empty when there are none."""
    parts = []
    left = AGENTS_MD_BYTES
    for path, text in instructions:
        data = text.strip().encode()
        if not data or left <= 0:
            continue
        if len(data) > left:
            data = data[:left] + f"\n[{path} is cut here: the limit of {AGENTS_MD_BYTES} bytes is reached]".encode()
        parts.append(data.decode("utf-8", "ignore"))
        left -= len(data)
    if not parts:
        return ""
    joined = "\n\n".join(parts)
    return f"# AGENTS.md instructions for {cwd}\n\n<INSTRUCTIONS>\n{joined}\n</INSTRUCTIONS>"


def _message(role: Any, *texts: str) -> Message:
    return Message(role=role, content=tuple(InputText(text=text) for text in texts))


def _environment(settings: Settings, now_ms: int) -> str:
    today = datetime.fromtimestamp(now_ms / 1000, tz=UTC).date().isoformat()
    lines = [
        f"  <cwd>{settings.cwd}</cwd>",
        "  <shell>bash</shell>",
        f"  <current_date>{today}</current_date>",
        "  <timezone>UTC</timezone>",
    ]
    return "\n".join(["<environment_context>", *lines, "</environment_context>"])


def _permissions(settings: Settings) -> str:
    texts = permission_texts()
    sandbox = settings.sandbox
    parts = [texts[f"sandbox {sandbox.type}"]]
    match sandbox:
        case ReadOnly():
            parts.append(texts["network off"])
        case WorkspaceWrite():
            if sandbox.writable_roots:
                parts.append(f"Also writable: {', '.join(sandbox.writable_roots)}.")
            parts.append(texts["network on" if sandbox.network_access else "network off"])
        case ExternalSandbox():
            parts.append(texts["network on" if sandbox.network_access else "network off"])
        case DangerFullAccess():
            pass
        case _:
            assert_never(sandbox)
    parts.append(texts[f"approval {_approval(settings)}"])
    return "<permissions>\n" + "\n".join(parts) + "\n</permissions>"


def _approval(settings: Settings) -> str:
    match settings.approval:
        case GranularApproval():
            return "on-request" if settings.approval.sandbox_approval else "never"
        case ApprovalMode():
            return settings.approval.value
        case _:
            assert_never(settings.approval)
