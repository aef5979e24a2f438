"""What people allowed on a thread's repository, from the catalog. agent.recall over Catalog."""

import asyncio
import logging
from typing import Self

from patchyard.adapters.catalog import Catalog, CatalogError
from patchyard.agent.recall import Recalled
from patchyard.policy import approval_key
from patchyard.protocol.tasks import RepositorySource

log = logging.getLogger(__name__)

_WAIT_S = 2.0
"""A turn does not wait longer for a catalog that is away: a person is asked instead."""


class RepositoryApprovals:
    """ApprovalMemory of one thread."""

    def __init__(self, catalog: Catalog, tenant_id: str, repository: str, thread_id: str) -> None:
        self._catalog = catalog
        self._tenant_id = tenant_id
        self._repository = repository
        self._thread_id = thread_id

    @classmethod
    def of(cls, catalog: Catalog, source: RepositorySource, *, tenant_id: str, thread_id: str) -> Self | None:
        """That of a thread on this repository; None: nothing is kept for it."""
        repository = approval_key(source)
        return None if repository is None else cls(catalog, tenant_id, repository, thread_id)

    async def recall(self) -> Recalled:
        """See ApprovalMemory."""
        try:
            async with asyncio.timeout(_WAIT_S):
                known = await self._catalog.recall_approvals(self._tenant_id, self._repository, self._thread_id)
        except (CatalogError, TimeoutError) as error:
            log.warning("approvals of the repository are not known now, people are asked: %s", error or "no answer in time")
            return Recalled()
        return Recalled(known.allowed, known.revoked)
