"""Decisions about commands and files. Nothing here enforces anything: the sandbox does.

commands   words of a shell script, known-safe and dangerous commands
approval   approval policy x sandbox policy -> run, ask or reject
paths      which paths a sandbox policy lets be written
"""

from .approval import Verdict, decide_command, decide_patch
from .commands import has_forced_rm, is_known_safe, split_script
from .paths import PROTECTED_NAMES, PathClass, classify_write, resolve

__all__ = [
    "PROTECTED_NAMES",
    "PathClass",
    "Verdict",
    "classify_write",
    "decide_command",
    "decide_patch",
    "has_forced_rm",
    "is_known_safe",
    "resolve",
    "split_script",
]
