"""Why a patch was not applied. Whatever is raised here, nothing was changed.

PatchError
├── PatchSyntaxError       the text is not a patch
│   └── EmptyPatchError    a patch without a single operation
├── HunkError              the patch does not fit the file
│   ├── ContextNotFound    an `@@` line is not in the file
│   ├── LinesNotFound      the lines to replace are not in the file
│   ├── AmbiguousMatch     only a tolerant comparison fits, and it fits several places
│   └── OverlappingHunks   two hunks change the same lines
├── FileProblem            the file is missing, a folder, not text, or not writable
└── PathRefused            the path leads outside of what may be written

Messages are shown to the model: they name paths as the patch wrote them, say what to do next, and have a bounded length.
"""

from collections.abc import Sequence

from patchyard.protocol.errors import ErrorCode, ErrorInfo

_LINE_LIMIT = 160
"""Characters of one quoted line; more is noise for a reader who only has to recognise it."""
_QUOTE_LIMIT = 12
"""Quoted lines of one block."""


def clip(text: str) -> str:
    """One line, cut to what an error message may hold."""
    return text if len(text) <= _LINE_LIMIT else text[: _LINE_LIMIT - 1] + "…"


def quote(lines: Sequence[str]) -> str:
    """Lines as an indented block; the middle is left out when there are many."""
    shown = [f"  {clip(line)}" for line in lines]
    if len(shown) > _QUOTE_LIMIT:
        half = _QUOTE_LIMIT // 2
        shown = [*shown[:half], f"  … {len(lines) - 2 * half} more lines …", *shown[-half:]]
    return "\n".join(shown)


class PatchError(Exception):
    """A patch was refused; nothing was changed. `info.message` is for the model and for people."""

    code = ErrorCode.INVALID_REQUEST

    def __init__(self, message: str, *, path: str | None = None, line: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        """As written in the patch."""
        self.line = line
        """Line of the patch, counted from 1 = `*** Begin Patch`."""

    @property
    def info(self) -> ErrorInfo:
        """The error as data; details hold `path` and `line` where they are known."""
        details = {}
        if self.path is not None:
            details["path"] = self.path
        if self.line is not None:
            details["line"] = str(self.line)
        return ErrorInfo.of(self.code, str(self), **details)


class PatchSyntaxError(PatchError):
    """The text does not follow the patch grammar."""


class EmptyPatchError(PatchSyntaxError):
    """The patch holds no operation."""


class HunkError(PatchError):
    """The patch does not fit the file as it is now."""

    code = ErrorCode.CONFLICT


class ContextNotFound(HunkError):
    """An `@@` context line is not in the searched part of the file."""


class LinesNotFound(HunkError):
    """The context and removed lines of a hunk are not in the searched part of the file."""


class AmbiguousMatch(HunkError):
    """Only a tolerant comparison fits, at more than one place: a guess could change the wrong one."""


class OverlappingHunks(HunkError):
    """Two hunks of one operation change the same lines."""


class FileProblem(PatchError):
    """The file that an operation names can not be used for it."""

    code = ErrorCode.CONFLICT


class PathRefused(PatchError):
    """The path leads outside of the folders that may be written."""
