"""Commands that are really patches: they are run by the patch library, not by a shell.

Recognised, also inside `bash|sh|zsh -c|-lc SCRIPT`:

    apply_patch PATCH                         as separate arguments
    apply_patch <<'EOF' … EOF                 also `applypatch`, any delimiter, quoted or not
    cd FOLDER && apply_patch <<'EOF' … EOF    one plain or quoted word
    *** Begin Patch … *** End Patch           the patch as the whole command

Everything else, and everything with more around it, is left to the shell.
"""

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass

from .hunks import BEGIN, WHITESPACE

_PROGRAMS = frozenset({"apply_patch", "applypatch"})
_SHELLS = frozenset({"bash", "sh", "zsh"})
_SHELL_FLAGS = frozenset({"-c", "-lc", "-cl"})

_OPENING = re.compile(
    r"""[ \t]*
    (?:cd[ \t]+(?P<folder>'[^'\n]*'|"[^"$`\\!\n]*"|[\w./@%+,:=-][\w./@%+,:=~-]*)[ \t]*&&[ \t]*)?
    (?:apply_patch|applypatch)[ \t]*
    <<[ \t]*(?:'(?P<single>[^'\n]+)'|"(?P<double>[^"\n]+)"|(?P<plain>[\w.-]*\w))[ \t]*\r?\n""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class PatchInvocation:
    """A patch found in a command."""

    patch: str
    folder: str | None = None
    """Where `cd` went first, as written."""
    bare: bool = False
    """The command was nothing but the patch."""


def intercept(command: str | Sequence[str]) -> PatchInvocation | None:
    """The patch that a command (argument list, or shell script) applies; None when it is any other command.

    The body of a heredoc is taken as it stands: an unquoted delimiter would let a shell expand `$` in source code.
    """
    if isinstance(command, str):
        return _from_script(command)
    match list(command):
        case [script]:
            return _from_script(script)
        case [program, patch] if _name(program) in _PROGRAMS:
            return PatchInvocation(patch)
        case [shell, flag, script] if _name(shell) in _SHELLS and flag in _SHELL_FLAGS:
            return _from_script(script)
        case [shell, "-l", "-c", script] if _name(shell) in _SHELLS:
            return _from_script(script)
        case _:
            return None


def _name(program: str) -> str:
    return posixpath.basename(program)


def _from_script(script: str) -> PatchInvocation | None:
    text = script.strip(WHITESPACE)
    if text.partition("\n")[0].strip(WHITESPACE) == BEGIN:
        return PatchInvocation(text, bare=True)
    opening = _OPENING.match(text)
    if opening is None:
        return None
    delimiter = opening["single"] or opening["double"] or opening["plain"]
    lines = text[opening.end() :].split("\n")
    ends = [i for i, line in enumerate(lines) if line.rstrip("\r") == delimiter]
    if not ends or ends[0] != len(lines) - 1:
        return None
    folder = opening["folder"]
    if folder is not None and folder[0] in "'\"":
        folder = folder[1:-1]
    return PatchInvocation("\n".join(lines[:-1]), folder or None)
