"""apply_patch: text in, file changes out. Pure: files come in through one callable, changes go out as data.

`parse` (or `PatchParser` while the text arrives) gives a Patch, `plan` verifies it against files and gives a ChangeSet.
"""

from ._assembly import FileProgress
from .apply import ChangeSet, FileText, Operation, ReadFile, RemoveFile, Step, WriteFile, plan
from .attempt import attempted_updates
from .errors import (
    AmbiguousMatch,
    ContextNotFound,
    EmptyPatchError,
    FileProblem,
    HunkError,
    LinesNotFound,
    OverlappingHunks,
    PatchError,
    PatchSyntaxError,
    PathRefused,
)
from .hunks import AddFile, Chunk, DeleteFile, Hunk, Patch, UpdateFile
from .intercept import PatchInvocation, intercept
from .parser import PatchParser, parse
from .paths import Scope, TouchedPath, touched_paths

__all__ = [
    "AddFile",
    "AmbiguousMatch",
    "ChangeSet",
    "Chunk",
    "ContextNotFound",
    "DeleteFile",
    "EmptyPatchError",
    "FileProblem",
    "FileProgress",
    "FileText",
    "Hunk",
    "HunkError",
    "LinesNotFound",
    "Operation",
    "OverlappingHunks",
    "Patch",
    "PatchError",
    "PatchInvocation",
    "PatchParser",
    "PatchSyntaxError",
    "PathRefused",
    "ReadFile",
    "RemoveFile",
    "Scope",
    "Step",
    "TouchedPath",
    "UpdateFile",
    "WriteFile",
    "attempted_updates",
    "intercept",
    "parse",
    "plan",
    "touched_paths",
]
