"""Which instructions a model is given."""

from dataclasses import dataclass

from patchyard.protocol.model_profiles import PromptFamily


@dataclass(frozen=True)
class Family:
    """A set of instructions for models that need the same."""

    name: PromptFamily
    text: str
    """File of its base instructions."""
    version: str
    """Raised by hand when they change in meaning; the hash changes with every letter."""
    prefixes: tuple[str, ...] = ()
    """Beginnings of names of its models, without the vendor's part (`vendor/model`)."""


FAMILIES: dict[PromptFamily, Family] = {
    "default": Family("default", "base.md", "2"),
    "open": Family(
        "open",
        "open.md",
        "1",
        ("qwen", "qwq", "llama", "mistral", "mixtral", "devstral", "codestral", "deepseek", "gpt-oss", "glm", "kimi", "gemma",
         "phi", "granite", "starcoder", "minimax"),
    ),
}  # fmt: skip


def family_for(model: str, named: PromptFamily | None = None) -> PromptFamily:
    """The family that a profile names, else the one that the model's name belongs to, else the default."""
    if named is not None:
        return named
    bare = model.rsplit("/", 1)[-1].lower()
    for name, family in FAMILIES.items():
        if bare.startswith(family.prefixes):
            return name
    return "default"
