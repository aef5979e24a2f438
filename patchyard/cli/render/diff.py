"""Diffs with colours."""

from rich.text import Text

from patchyard.protocol.items import FileUpdate

from .text import safe

_MAX_LINES = 60
"""Lines of one file's change that are shown; the patch has all of them."""


def diff_text(change: FileUpdate) -> Text:
    """One file's change, cut to a screenful."""
    sign = {"add": "+", "delete": "-", "update": ""}[change.kind]
    lines = [f"{sign}{line}" for line in safe(change.diff).splitlines()]
    text = Text()
    for line in lines[:_MAX_LINES]:
        text.append(f"    {line[:400]}\n", style=line_style(line))
    if len(lines) > _MAX_LINES:
        text.append(f"    … {len(lines) - _MAX_LINES} more line(s)\n", style="dim")
    return text


def line_style(line: str) -> str:
    """Colour of a line of a unified diff."""
    if line.startswith(("+++", "---", "diff ", "index ")):
        return "bold"
    if line.startswith("@@"):
        return "cyan"
    if line.startswith("+"):
        return "green"
    if line.startswith("-"):
        return "red"
    return "dim"
