"""The seam for what runs before and after a compaction."""

from typing import Literal, Protocol

Trigger = Literal["manual", "auto"]
"""manual: somebody asked for it (Op `compact`); auto: the window was full, or the model wanted a new one."""
Reason = Literal["manual", "context_limit", "model_asked", "model_downshift"]


class CompactionHooks(Protocol):
    """Implemented by `hooks.CompactionAnswers`; each thread has one."""

    async def before(self, trigger: Trigger) -> str | None:
        """Text: the compaction is refused, for this reason."""
        ...

    async def after(self, trigger: Trigger) -> None:
        """The new window is open and recorded."""
        ...
