"""From committed records to object store and catalog. Both are copies: what Redis holds is the truth until the store has it."""

import logging
from collections import OrderedDict
from dataclasses import dataclass

from observability import Metric, Metrics
from patchyard.adapters.catalog import Catalog, CatalogError, ProjectionGap
from patchyard.adapters.queue import CommittedLine, FlushCandidate, QueueCore, ThreadStatus
from patchyard.adapters.store import ObjectStore, StoredSegments, StoreError
from patchyard.protocol.rollout_lines import RolloutLine
from patchyard.rollout import RolloutError, SegmentRecorder, decode_line, read_lines, thread_prefix

log = logging.getLogger(__name__)

FLUSH_AFTER_MS = 1000
"""A running turn's records go to the store about once a second, as one segment; a thread that rests is written at once."""
KEPT_FOR_CATALOG = 20_000
"""Records of one thread that wait in Redis for a catalog that is down; beyond them it is rebuilt from the store."""
COMPLAIN_EVERY_MS = 60_000
"""A store that is away is logged once a minute, not in each of five rounds a second."""
_PAGE = 500
_KNOWN_THREADS = 5000


@dataclass
class _Known:
    recorder: SegmentRecorder
    projected: int | None = None
    stored: int | None = None


class Projection:
    """Writes segments, trims what the store has, keeps the catalog up to date. Several may run: all is idempotent."""

    def __init__(self, queue: QueueCore, store: ObjectStore, catalog: Catalog, metrics: Metrics) -> None:
        self._queue = queue
        self._segments = StoredSegments(store)
        self._catalog = catalog
        self._metrics = metrics
        self._threads: OrderedDict[str, _Known] = OrderedDict()
        self._complain_at_ms = 0

    async def round(self, *, now_ms: int) -> int:
        """One pass over threads with unconfirmed records; how many had any. QueueUnavailable."""
        candidates = await self._queue.threads_to_flush()
        failures: list[Exception] = []
        for candidate in candidates:
            try:
                await self._thread(candidate, now_ms)
            except (StoreError, RolloutError) as error:
                failures.append(error)
        if failures and now_ms >= self._complain_at_ms:
            self._complain_at_ms = now_ms + COMPLAIN_EVERY_MS
            log.warning("records of %d thread(s) are not in the store yet: %s", len(failures), failures[0])
        return len(candidates)

    async def _thread(self, candidate: FlushCandidate, now_ms: int) -> None:
        known = self._known(candidate)
        newest = candidate.next_ordinal - 1
        resting = candidate.status is not ThreadStatus.RUNNING
        due = resting or now_ms - candidate.since_ms >= FLUSH_AFTER_MS
        if not due and known.projected is not None and known.projected >= newest:
            return
        lines = await self._read(candidate)
        if not lines:
            return
        projected = await self._project(candidate, known, lines)
        if not due:
            return
        stored = await known.recorder.append(lines)
        if known.stored is None or stored > known.stored:
            self._metrics.add(Metric.SEGMENT_BYTES, sum(len(line.json) + 1 for line in lines))
        known.stored = stored
        if stored >= newest and resting:
            await known.recorder.merge()
        behind = len(lines) < KEPT_FOR_CATALOG
        await self._queue.trim(candidate.thread_id, min(stored, projected) if behind else stored)

    async def _read(self, candidate: FlushCandidate) -> list[CommittedLine]:
        lines: list[CommittedLine] = []
        after = candidate.first_ordinal - 1 if candidate.first_ordinal else None
        while True:
            page = await self._queue.read_lines(candidate.thread_id, after=after, limit=_PAGE)
            lines += page
            if len(page) < _PAGE or len(lines) > 2 * KEPT_FOR_CATALOG:
                return lines
            after = page[-1].ordinal

    async def _project(self, candidate: FlushCandidate, known: _Known, lines: list[CommittedLine]) -> int:
        """Bring the catalog up to date; the highest ordinal that it holds, -1 for none."""
        if known.projected is not None and known.projected >= lines[-1].ordinal:
            return known.projected
        after = known.projected if known.projected is not None else -1
        new = [decode_line(line.json) for line in lines if line.ordinal > after]
        try:
            result = await self._catalog.apply_lines(candidate.tenant_id, candidate.thread_id, new)
            if isinstance(result, ProjectionGap):
                await self._reindex(candidate, lines)
                known.projected = lines[-1].ordinal
            else:
                known.projected = result.applied_through
        except CatalogError as error:
            log.warning("the catalog is behind on thread %s: %s", candidate.thread_id, error)
            known.projected = None
            return -1
        return known.projected

    async def _reindex(self, candidate: FlushCandidate, tail: list[CommittedLine]) -> None:
        """Rebuild a thread's rows from the store and what is still in Redis."""
        whole: list[RolloutLine] = []
        prefix = thread_prefix(candidate.tenant_id, candidate.thread_id)
        async for stored in read_lines(self._segments, prefix):
            if stored.ordinal >= tail[0].ordinal:
                break
            whole.append(decode_line(stored.json))
        whole += [decode_line(line.json) for line in tail]
        await self._catalog.reindex_thread(candidate.tenant_id, candidate.thread_id, whole)

    def _known(self, candidate: FlushCandidate) -> _Known:
        known = self._threads.get(candidate.thread_id)
        if known is None:
            recorder = SegmentRecorder(self._segments, candidate.tenant_id, candidate.thread_id)
            known = self._threads[candidate.thread_id] = _Known(recorder)
        self._threads.move_to_end(candidate.thread_id)
        while len(self._threads) > _KNOWN_THREADS:
            self._threads.popitem(last=False)
        return known
