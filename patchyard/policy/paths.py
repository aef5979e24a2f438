"""Which paths a sandbox policy lets be written. Text only: symbolic links are the sandbox's business."""

import posixpath
from enum import StrEnum
from typing import assert_never

from patchyard.protocol.policies import DangerFullAccess, ExternalSandbox, ReadOnly, SandboxPolicy, WorkspaceWrite

PROTECTED_NAMES = frozenset({".git", ".patchyard", ".codex", ".agents", ".aws"})
"""Names that stay read-only in every writable root, also when they do not exist yet."""


class PathClass(StrEnum):
    """How a path that is to be written stands to the sandbox policy."""

    WRITABLE = "writable"
    READ_ONLY_SANDBOX = "read_only_sandbox"
    PROTECTED = "protected"
    OUTSIDE = "outside"


def resolve(path: str, cwd: str) -> str:
    """The absolute, normalised form of `path` as seen from `cwd`."""
    return posixpath.normpath(posixpath.join(cwd, path))


def is_below(path: str, root: str) -> bool:
    """Whether an absolute, normalised path is `root` or lies below it."""
    return path == root or path.startswith(root.rstrip("/") + "/")


def classify_write(path: str, *, cwd: str, sandbox: SandboxPolicy) -> PathClass:
    """How writing `path` (as given in a patch) stands to `sandbox`; `cwd` is the workspace."""
    match sandbox:
        case DangerFullAccess() | ExternalSandbox():
            return PathClass.WRITABLE
        case ReadOnly():
            return PathClass.READ_ONLY_SANDBOX
        case WorkspaceWrite():
            return _in_roots(resolve(path, cwd), (cwd, *sandbox.writable_roots))
        case _:
            assert_never(sandbox)


def _in_roots(target: str, roots: tuple[str, ...]) -> PathClass:
    found = PathClass.OUTSIDE
    for root in roots:
        if is_below(target, root):
            below = target[len(root.rstrip("/")) :].split("/")
            if PROTECTED_NAMES.isdisjoint(below):
                return PathClass.WRITABLE
            found = PathClass.PROTECTED
    return found
