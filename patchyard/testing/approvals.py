"""Approvals of repositories, kept in memory: what threads said is remembered, and can be revoked."""

from collections import Counter
from collections.abc import Iterable

from patchyard.agent.recall import Recalled
from patchyard.protocol.approvals import ApprovalRule
from patchyard.protocol.events import ApprovalRemembered, DurableMsg


class RepositoryMemory:
    """ApprovalMemory double of one repository, shared by its threads. Fails when an event is about another one."""

    def __init__(self, repository: str) -> None:
        self.repository = repository
        self.allowed: set[ApprovalRule] = set()
        self.revoked: Counter[ApprovalRule] = Counter()
        self.asked = 0
        """How often a thread wanted to know."""

    def learn(self, events: Iterable[DurableMsg]) -> None:
        """What the catalog does with the records of a thread."""
        for event in events:
            if isinstance(event, ApprovalRemembered):
                if event.repository != self.repository:
                    raise AssertionError(f"an approval for {event.repository} came to the memory of {self.repository}")
                self.allowed |= set(event.rules) - set(self.revoked)

    def revoke(self, rule: ApprovalRule) -> None:
        """It counts no more. KeyError: it did not count."""
        self.allowed.remove(rule)
        self.revoked[rule] += 1

    async def recall(self) -> Recalled:
        """See ApprovalMemory."""
        self.asked += 1
        return Recalled(frozenset(self.allowed), dict(self.revoked))
