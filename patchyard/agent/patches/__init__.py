"""Patches of a thread: one way for all, whether the model calls the tool or a command runs the program."""

from .hooked import with_hooks
from .program import PatchProgram
from .work import PatchWork

__all__ = ["PatchProgram", "PatchWork", "with_hooks"]
