"""Decisions about commands and files. Nothing here enforces anything: the sandbox does.

commands   words of a shell script, known-safe and dangerous commands
approval   approval policy x sandbox policy -> run, ask or reject
paths      which paths a sandbox policy lets be written
repositories   what counts as the same repository for approvals
"""

from .approval import Verdict, decide_command, decide_patch
from .commands import has_forced_rm, is_known_safe, split_script
from .paths import PROTECTED_NAMES, PathClass, classify_write, resolve
from .repositories import approval_key

__all__ = [
    "PROTECTED_NAMES",
    "PathClass",
    "Verdict",
    "approval_key",
    "classify_write",
    "decide_command",
    "decide_patch",
    "has_forced_rm",
    "is_known_safe",
    "resolve",
    "split_script",
]
