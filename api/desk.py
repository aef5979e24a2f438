"""Tasks between catalog and queue: accepted once, whatever dies in between; shown as far as their records go."""

import asyncio
import logging
import time

from patchyard.adapters.catalog import Catalog, CatalogError, ProjectionGap
from patchyard.adapters.queue import QueueCore, QueueError, ThreadRegistration, ThreadState
from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.ids import new_id
from patchyard.protocol.ops import (
    Interrupt,
    NotSubmitted,
    Op,
    Submission,
    SubmissionReceipt,
    TextInput,
    TraceContext,
    TurnInput,
)
from patchyard.protocol.tasks import (
    ArchiveSource,
    GitSource,
    NoSource,
    RepositorySource,
    TaskCreateRequest,
    TaskCreateResponse,
    TaskStatus,
    TaskView,
)
from patchyard.rollout import decode_line

from .auth import Caller
from .doorbell import Doorbell
from .errors import refuse
from .tracing import new_trace, trace_id_of

log = logging.getLogger(__name__)

STALE_MS = 10_000
"""A task whose row says `submitting` for so long lost its API process between catalog and queue."""
_CATCH_UP_LINES = 500
_CATCH_UP_PAGES = 10
"""One request projects at most so much; the projection job does the rest."""
_TITLE_CHARACTERS = 120


class TaskDesk:
    """Creates, shows and cancels tasks."""

    def __init__(self, queue: QueueCore, catalog: Catalog, doorbell: Doorbell) -> None:
        self._queue = queue
        self._catalog = catalog
        self._doorbell = doorbell
        self._later: set[asyncio.Task[None]] = set()

    async def create(self, caller: Caller, request: TaskCreateRequest, trace: TraceContext) -> TaskCreateResponse:
        """Accept a task: catalog row, then queue, then row queued, then the bell. The same key again: the first answer.

        CatalogError or QueueError: nothing was accepted.
        """
        task_id = new_id()
        view = TaskView(
            id=task_id,
            tenant_id=caller.tenant_id,
            thread_id=new_id(),
            turn_id=new_id(),
            status=TaskStatus.QUEUED,
            reason="submitting",
            title=title_of(request.spec.instruction),
            spec=request.spec,
            created_at=_now_ms(),
            trace_id=trace_id_of(trace),
        )
        created = await self._catalog.create_task(view, request.idempotency_key)
        if not created.duplicate:
            await self._submit_new(view, trace)
        elif created.view.reason == "submitting":
            # The first try is under way or died half-way; the queue knows the task's id, so this submits it once in all.
            await self._submit(created.view, new_trace(created.view.trace_id))
        return _created(created.view, duplicate=created.duplicate)

    async def _submit_new(self, view: TaskView, trace: TraceContext) -> None:
        try:
            await self._submit(view, trace)
        except QueueError:
            await self._discard(view)
            raise

    async def _discard(self, view: TaskView) -> None:
        try:
            await self._catalog.discard_task(view.tenant_id, view.id)
        except CatalogError as error:
            log.warning("task %s was refused and could not be forgotten: %s", view.id, error)

    async def _submit(self, view: TaskView, trace: TraceContext) -> None:
        submission = Submission(
            id=view.turn_id or view.id,
            tenant_id=view.tenant_id,
            thread_id=view.thread_id,
            op=TurnInput(items=(TextInput(text=view.spec.instruction),)),
            trace=trace,
            idempotency_key=view.id,
            submitted_at=view.created_at,
        )
        registration = ThreadRegistration(
            task_id=view.id,
            repository=repository_cap_key(view.spec.repository),
            spec_json=view.spec.model_dump_json(exclude_none=True),
            title=view.title,
        )
        await self._queue.submit(submission, registration=registration)
        self._doorbell.ring()
        # Accepted is accepted: nobody waits for the row's next state, and if it is lost the sweeper makes it again.
        later = asyncio.create_task(self._mark_queued(view))
        self._later.add(later)
        later.add_done_callback(self._later.discard)

    async def _mark_queued(self, view: TaskView) -> None:
        try:
            await self._catalog.mark_queued(view.tenant_id, view.id)
        except CatalogError as error:
            log.warning("task %s is queued but its row is not: %s", view.id, error)

    async def close(self) -> None:
        """Finish what was left for later."""
        await asyncio.gather(*self._later)

    async def sweep(self, *, older_than_ms: int = STALE_MS) -> int:
        """Submit tasks whose API process died between catalog and queue; how many. CatalogError, QueueError."""
        stale = await self._catalog.stale_submitting(older_than_ms)
        for view in stale:
            await self._submit(view, new_trace(view.trace_id))
        return len(stale)

    async def view(self, caller: Caller, task_id: str) -> TaskView:
        """A task, with everything that its thread has committed. NotFound."""
        task = await self._catalog.get_task(caller.tenant_id, task_id)
        return await self._catch_up(task)

    async def _catch_up(self, task: TaskView) -> TaskView:
        """Project what the job in the workers has not yet, so that whoever saw an event also sees it here."""
        try:
            state = await self._queue.thread_state(task.thread_id)
            if state is None:
                return task
            await self._project(task, state)
        except QueueError as error:
            log.warning("task %s is shown as the catalog has it: %s", task.id, error)
            return task
        # Read again also if nothing was left to project: the job may have done it since the first look.
        return await self._catalog.get_task(task.tenant_id, task.id)

    async def _project(self, task: TaskView, state: ThreadState) -> None:
        applied = await self._catalog.applied_through(task.tenant_id, task.thread_id)
        for _ in range(_CATCH_UP_PAGES):
            if applied >= state.next_ordinal - 1:
                break
            after = applied if applied >= 0 else None
            lines = await self._queue.read_lines(task.thread_id, after=after, limit=_CATCH_UP_LINES)
            if not lines:
                break
            result = await self._catalog.apply_lines(task.tenant_id, task.thread_id, [decode_line(line.json) for line in lines])
            if isinstance(result, ProjectionGap):
                break
            applied = result.applied_through

    async def cancel(self, caller: Caller, task_id: str, trace: TraceContext) -> TaskView:
        """Stop a task. One that waits ends here and now; a running one within a second. NotFound, QueueError."""
        task = await self.view(caller, task_id)
        if task.status.is_terminal:
            return task
        if task.reason == "submitting":
            await self._submit(task, new_trace(task.trace_id))
        await self.submit_op(caller, task.thread_id, Interrupt(), trace=trace, idempotency_key=None)
        return await self._catch_up(task)

    async def thread(self, caller: Caller, thread_id: str) -> ThreadState:
        """A thread of the caller's tenant. ApiError not_found, also for another tenant's."""
        state = await self._queue.thread_state(thread_id)
        if state is None or state.tenant_id != caller.tenant_id:
            raise refuse(ErrorCode.NOT_FOUND, f"There is no thread {thread_id!r}. A task's thread is in its `thread_id`.")
        return state

    async def submit_op(
        self, caller: Caller, thread_id: str, op: Op, *, trace: TraceContext, idempotency_key: str | None
    ) -> SubmissionReceipt:
        """Ask something of a thread. QueueFull, ThreadClosedError, ThreadNotFound, QueueUnavailable."""
        submission = Submission(
            id=new_id(),
            tenant_id=caller.tenant_id,
            thread_id=thread_id,
            op=op,
            trace=trace,
            idempotency_key=idempotency_key,
            author=caller.name,
            submitted_at=_now_ms(),
        )
        receipt = await self._queue.submit(submission)
        if not isinstance(receipt.admission, NotSubmitted):
            self._doorbell.ring()
        return receipt


def title_of(instruction: str) -> str:
    """The first line that says something, cut."""
    line = next((line.strip(" \t#*-") for line in instruction.splitlines() if line.strip(" \t#*-")), instruction.strip())
    return line if len(line) <= _TITLE_CHARACTERS else line[: _TITLE_CHARACTERS - 1] + "…"


def repository_cap_key(source: RepositorySource) -> str:
    """What counts as one repository for its cap; empty: no cap."""
    match source:
        case GitSource(url=url):
            return url.rstrip("/").removesuffix(".git")
        case ArchiveSource() | NoSource():
            return ""


def _created(view: TaskView, *, duplicate: bool) -> TaskCreateResponse:
    return TaskCreateResponse(
        task_id=view.id,
        thread_id=view.thread_id,
        turn_id=view.turn_id or view.id,
        trace_id=view.trace_id or "",
        duplicate=duplicate,
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
