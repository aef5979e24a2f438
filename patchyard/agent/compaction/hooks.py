"""The seam for what runs before and after a compaction."""

from dataclasses import dataclass
from typing import Literal, Protocol

from patchyard.protocol.model_profiles import CompactionMethod

Trigger = Literal["manual", "auto"]
"""manual: somebody asked for it (Op `compact`); auto: the window was full."""
Reason = Literal["manual", "context_limit", "model_downshift"]


@dataclass(frozen=True)
class CompactionDone:
    """What is told afterwards."""

    trigger: Trigger
    reason: Reason
    method: CompactionMethod
    window_number: int
    summary: str | None
    """None: the method writes none that can be read."""


class CompactionHooks(Protocol):
    """Implemented by the hooks of a thread; set as `Thread.compaction_hooks`."""

    async def before(self, trigger: Trigger) -> str | None:
        """Text: the compaction is refused, for this reason."""
        ...

    async def after(self, done: CompactionDone) -> None:
        """The new window is open and recorded."""
        ...


class NoCompactionHooks:
    """Allows everything."""

    async def before(self, trigger: Trigger) -> str | None:
        """See CompactionHooks."""
        del trigger
        return None

    async def after(self, done: CompactionDone) -> None:
        """See CompactionHooks."""
