"""The port behind approvals that outlive their thread."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from patchyard.protocol.approvals import ApprovalRule


@dataclass(frozen=True)
class Recalled:
    """What is known of a repository at this moment."""

    allowed: frozenset[ApprovalRule] = frozenset()
    """Counts now, in every thread on the repository."""
    revoked: Mapping[ApprovalRule, int] = field(default_factory=dict)
    """Was allowed in this thread and counts no more: how often that was taken back."""


class ApprovalMemory(Protocol):
    """Approvals of the thread's repository. Implemented by workers over the catalog, and by testing."""

    async def recall(self) -> Recalled:
        """As it is now. Never fails and never waits long: of a catalog that is away nothing is known, so people are asked."""
        ...
