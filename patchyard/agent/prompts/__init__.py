"""Texts that the model reads, in their own files, and the version that every rollout names."""

import hashlib
from functools import cache
from importlib.resources import files

from patchyard.protocol.model_profiles import PromptFamily

from .families import FAMILIES, Family, family_for

__all__ = [
    "FAMILIES",
    "Family",
    "base_instructions",
    "compaction_prompt",
    "family_for",
    "patch_grammar",
    "permission_texts",
    "prompt_version",
    "review_prompt",
    "tool_description",
    "window_text",
]

_SHARED = (
    "apply_patch.lark",
    "permissions.md",
    "compaction.md",
    "windows.md",
    "review.md",
    "tools/exec_command.md",
    "tools/write_stdin.md",
    "tools/apply_patch.md",
    "tools/update_plan.md",
    "tools/view_image.md",
    "tools/request_user_input.md",
    "tools/spawn_agent.md",
    "tools/send_input.md",
    "tools/wait_agent.md",
    "tools/close_agent.md",
    "tools/get_context_remaining.md",
    "tools/new_context_window.md",
    "agent.md",
)
"""Texts that all families have in common."""


@cache
def _text(name: str) -> str:
    return files(__name__).joinpath(*name.split("/")).read_text(encoding="utf-8").strip()


@cache
def _sections(name: str) -> dict[str, str]:
    """Sections of a file by their heading."""
    sections = _text(name).split("\n## ")
    return {heading: body.strip() for heading, _, body in (s.partition("\n") for s in sections[1:])}


def base_instructions(family: PromptFamily = "default") -> str:
    """The `instructions` of every request of a turn."""
    return _text(FAMILIES[family].text)


def compaction_prompt() -> str:
    """Asks the model for the summary that a new window begins with."""
    return _text("compaction.md")


def window_text(name: str) -> str:
    """A text about context windows: a section of windows.md."""
    return _sections("windows.md")[name]


def review_prompt() -> str:
    """What a review turn is told before its target."""
    return _text("review.md")


def agent_instruction(order: str) -> str:
    """What a sub-agent is told: where it stands, then its order."""
    return f"{_text('agent.md')}\n\n{order}"


def tool_description(name: str) -> str:
    """What a tool is for, as the model reads it."""
    return _text(f"tools/{name}.md")


def patch_grammar() -> str:
    """The grammar of apply_patch (Lark)."""
    return _text("apply_patch.lark") + "\n"


def permission_texts() -> dict[str, str]:
    """Sections of permissions.md by their heading."""
    return _sections("permissions.md")


@cache
def prompt_version(family: PromptFamily = "default") -> str:
    """`family/VERSION+sha256:…` over all texts that its models read."""
    chosen = FAMILIES[family]
    digest = hashlib.sha256()
    for name in (chosen.text, *_SHARED):
        digest.update(f"{name}\0{_text(name)}\0".encode())
    return f"{family}/{chosen.version}+sha256:{digest.hexdigest()[:16]}"
