"""Hooks: commands of the task or of its repository that run inside the box at eight events of a session."""

from .hooks import CompactionAnswers, Hooks
from .outcome import NOTHING, Verdict
from .process import SPLIT_SCRIPT
from .words import HookWords

__all__ = ["NOTHING", "SPLIT_SCRIPT", "CompactionAnswers", "HookWords", "Hooks", "Verdict"]
