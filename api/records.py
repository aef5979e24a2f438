"""A thread's records from both places that hold them: what was trimmed from the stream is in the object store."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from patchyard.adapters.queue import QueueCore
from patchyard.adapters.store import ObjectStore, StoredSegments
from patchyard.rollout import read_lines, thread_prefix
from patchyard.rollout.ports import NumberedLine

_PAGE = 500


class Records:
    """Reads rollouts."""

    def __init__(self, queue: QueueCore, store: ObjectStore) -> None:
        self._queue = queue
        self._segments = StoredSegments(store)

    async def lines(self, tenant_id: str, thread_id: str, *, start: int = 0) -> AsyncGenerator[NumberedLine, None]:
        """The records of a thread so far from ordinal `start` on, in order. QueueError, StoreError, RolloutError."""
        position = start
        while True:
            batch = await self._queue.read_lines(thread_id, after=position - 1 if position else None, limit=_PAGE)
            if batch and batch[0].ordinal == position:
                for line in batch:
                    yield line
                position = batch[-1].ordinal + 1
                continue
            # Either this is the end, or what comes next was trimmed: then the store has it.
            before = position
            async with aclosing(self._stored(tenant_id, thread_id, position)) as stored:
                async for record in stored:
                    yield record
                    position = record.ordinal + 1
            if position == before:
                return

    async def history(self, tenant_id: str, thread_id: str, after: int | None, through: int) -> AsyncIterator[NumberedLine]:
        """The records in between, from the store; what the event hub asks for."""
        async with aclosing(self._stored(tenant_id, thread_id, 0 if after is None else after + 1)) as stored:
            async for record in stored:
                if record.ordinal > through:
                    return
                yield record

    async def _stored(self, tenant_id: str, thread_id: str, start: int) -> AsyncGenerator[NumberedLine, None]:
        async for record in read_lines(self._segments, thread_prefix(tenant_id, thread_id), start=start):
            yield record
