"""Context windows: when one is full, how the next one begins, and what the model is told about it.

Exported is the seam for hooks; `compactor` and `reminders` are for turns, which import them by their own name.
"""

from .hooks import CompactionHooks, Reason, Trigger

__all__ = ["CompactionHooks", "Reason", "Trigger"]
