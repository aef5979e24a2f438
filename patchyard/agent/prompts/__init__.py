"""Texts that the model reads, in their own files, and the version that every rollout names."""

import hashlib
from functools import cache
from importlib.resources import files

VERSION = "1"
"""Raised by hand when the instructions change in meaning; the hash changes with every letter."""

_TEXTS = (
    "base.md",
    "apply_patch.lark",
    "permissions.md",
    "tools/exec_command.md",
    "tools/write_stdin.md",
    "tools/apply_patch.md",
    "tools/update_plan.md",
)


@cache
def _text(name: str) -> str:
    return files(__name__).joinpath(*name.split("/")).read_text(encoding="utf-8").strip()


def base_instructions() -> str:
    """The `instructions` of every request of a turn."""
    return _text("base.md")


def tool_description(name: str) -> str:
    """What a tool is for, as the model reads it."""
    return _text(f"tools/{name}.md")


def patch_grammar() -> str:
    """The grammar of apply_patch (Lark)."""
    return _text("apply_patch.lark") + "\n"


@cache
def permission_texts() -> dict[str, str]:
    """Sections of permissions.md by their heading."""
    sections = _text("permissions.md").split("\n## ")
    return {heading: body.strip() for heading, _, body in (s.partition("\n") for s in sections[1:])}


@cache
def prompt_version() -> str:
    """`VERSION+sha256:…` over all texts."""
    digest = hashlib.sha256()
    for name in _TEXTS:
        digest.update(f"{name}\0{_text(name)}\0".encode())
    return f"{VERSION}+sha256:{digest.hexdigest()[:16]}"
