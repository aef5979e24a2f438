"""Sub-agents as threads of the queue: same tenant, own box, a copy of the parent's work tree. agent.agents.port over QueueCore."""

import asyncio
from collections.abc import Sequence

from pydantic import ValidationError

from patchyard.adapters.queue import (
    ParentTurn,
    QueueCore,
    QueueError,
    Spent,
    ThreadClosedError,
    ThreadNotFound,
    ThreadRegistration,
    ThreadState,
    ThreadStatus,
)
from patchyard.adapters.store import ObjectStore, StoredSegments, StoreError
from patchyard.adapters.workspace import WorkspaceError
from patchyard.agent.agents.port import BUSY, AgentOrder, AgentState, AgentStatus, AgentThreadError
from patchyard.agent.ports import SandboxError
from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.events import TurnCompleted, TurnFailed, TurnInterrupted
from patchyard.protocol.ids import new_id
from patchyard.protocol.ops import Admission, Interrupt, Op, Shutdown, Submission, TextInput, TurnInput
from patchyard.protocol.policies import ApprovalMode
from patchyard.protocol.rollout_lines import EventMsgLine, RolloutLine
from patchyard.protocol.tasks import TaskSpec
from patchyard.rollout import RolloutError, decode_line, load_thread, read_back, thread_prefix

from .artefacts import Snapshots
from .boxes import TurnBoxes
from .owners import Owner

DEPTH_LABEL = "patchyard.agent_depth"
PARENT_LABEL = "patchyard.parent_thread"
_LOOK_S = 0.5
"""Between two looks at threads that are waited for."""
_PAGE = 1000
_TITLE = 120

Terminal = TurnCompleted | TurnFailed | TurnInterrupted


class QueueAgents:
    """Implements agent.agents.port.AgentThreads for one claimed thread."""

    def __init__(
        self, queue: QueueCore, store: ObjectStore, snapshots: Snapshots, owner: Owner, *, spec: TaskSpec, boxes: TurnBoxes
    ) -> None:
        self._queue = queue
        self._store = store
        self._snapshots = snapshots
        self._owner = owner
        self._spec = spec
        self._boxes = boxes

    async def spawn(self, order: AgentOrder) -> None:
        """See the port."""
        try:
            patch = await self._boxes.diff()
            if not patch.empty:
                await self._snapshots.put(self._owner.tenant_id, order.thread_id, fence=0, number=0, data=patch.data)
            spec = await self._child_spec(order)
        except (WorkspaceError, SandboxError, StoreError) as error:
            raise AgentThreadError(error.info) from error
        except ValidationError as error:
            raise AgentThreadError(_bad(str(error.errors()[0]["msg"]))) from error
        parent = ParentTurn(self._owner.thread_id, order.turn_id)
        registration = ThreadRegistration(spec_json=spec.model_dump_json(), title=order.instruction[-_TITLE:], parent=parent)
        await self._submit(order.thread_id, _say(order.instruction), key="spawn", registration=registration)

    async def send(self, thread_id: str, message: str, *, interrupt: bool) -> bool:
        """See the port."""
        if interrupt:
            await self._submit(thread_id, Interrupt())
        return (await self._submit(thread_id, _say(message))).type == "started"

    async def states(self, thread_ids: Sequence[str]) -> Sequence[AgentState]:
        """See the port."""
        return [await self._state(thread_id) for thread_id in thread_ids]

    async def changed(self, thread_ids: Sequence[str]) -> None:
        """See the port."""
        running: set[str] = set()
        while True:
            seen = {thread_id: await self._status(thread_id) for thread_id in thread_ids}
            runs = {thread_id for thread_id, status in seen.items() if status == "running"}
            if running - runs or not all(status in BUSY for status in seen.values()):
                return
            running = runs
            await asyncio.sleep(_LOOK_S)

    async def close(self, thread_id: str) -> None:
        """See the port."""
        try:
            await self._queue.submit(self._submission(thread_id, Shutdown(), key="close"))
        except (ThreadClosedError, ThreadNotFound):
            return
        except QueueError as error:
            raise AgentThreadError(error.info) from error

    # --- submitting

    async def _child_spec(self, order: AgentOrder) -> TaskSpec:
        """The parent's specification, at the very commit that the parent works on, and without anybody to ask."""
        labels = {**self._spec.labels, DEPTH_LABEL: str(order.depth), PARENT_LABEL: self._owner.thread_id}
        changes = {
            "base": await self._boxes.base_commit(),
            "instruction": order.instruction,
            "instruction_untrusted": False,
            "verify": None,
            "approval": ApprovalMode.NEVER,
            "budgets": order.budgets,
            "labels": labels,
        }
        return TaskSpec.model_validate({**dict(self._spec), **changes})

    async def _submit(
        self, thread_id: str, op: Op, *, key: str | None = None, registration: ThreadRegistration | None = None
    ) -> Admission:
        try:
            receipt = await self._queue.submit(self._submission(thread_id, op, key=key), registration=registration)
        except QueueError as error:
            raise AgentThreadError(error.info) from error
        if receipt.admission.type == "not_submitted" and not isinstance(op, Interrupt):
            raise AgentThreadError(_bad(f"it does not take this now ({receipt.admission.reason.value})"))
        return receipt.admission

    def _submission(self, thread_id: str, op: Op, *, key: str | None) -> Submission:
        submission_id = new_id()
        return Submission(
            id=submission_id,
            tenant_id=self._owner.tenant_id,
            thread_id=thread_id,
            op=op,
            idempotency_key=key,
            submitted_at=int(submission_id.replace("-", "")[:12], 16),
        )

    # --- looking

    async def _status(self, thread_id: str) -> AgentStatus:
        state = await self._thread_state(thread_id)
        return "unknown" if state is None else _status_of(state)

    async def _thread_state(self, thread_id: str) -> ThreadState | None:
        try:
            state = await self._queue.thread_state(thread_id)
        except QueueError as error:
            raise AgentThreadError(error.info) from error
        return None if state is None or state.tenant_id != self._owner.tenant_id else state

    async def _state(self, thread_id: str) -> AgentState:
        state = await self._thread_state(thread_id)
        if state is None:
            return AgentState(thread_id, "unknown")
        tail = await self._tail(thread_id)
        segments = StoredSegments(self._store)
        try:
            spent = state.spent or await self._spent_by_records(segments, thread_id, tail)
            end = await self._last_end(segments, thread_id, tail)
        except (StoreError, RolloutError) as error:
            message = f"the records of agent {thread_id} can't be read now"
            raise AgentThreadError(ErrorInfo.of(ErrorCode.STORE_UNAVAILABLE, message)) from error
        return _told(thread_id, _status_of(state), spent, end)

    async def _spent_by_records(self, segments: StoredSegments, thread_id: str, tail: Sequence[RolloutLine]) -> Spent:
        """Of an agent that was started before the queue kept sums."""
        restored = await load_thread(segments, self._owner.tenant_id, thread_id, tail)
        return Spent(restored.usage, restored.cost_usd, model_requests=0, tool_calls=0)

    async def _tail(self, thread_id: str) -> list[RolloutLine]:
        lines: list[RolloutLine] = []
        while True:
            after = lines[-1].ordinal if lines else None
            try:
                page = await self._queue.read_lines(thread_id, after=after, limit=_PAGE)
            except QueueError as error:
                raise AgentThreadError(error.info) from error
            lines += [decode_line(line.json) for line in page]
            if len(page) < _PAGE:
                return lines

    async def _last_end(self, segments: StoredSegments, thread_id: str, tail: Sequence[RolloutLine]) -> Terminal | None:
        """The newest end of a turn of the thread."""
        for line in reversed(tail):
            if (end := _end(line)) is not None:
                return end
        below = tail[0].ordinal if tail else None
        if below == 0:
            return None
        async for stored in read_back(segments, thread_prefix(self._owner.tenant_id, thread_id), below=below):
            if (end := _end(decode_line(stored.json))) is not None:
                return end
        return None


def depth_of(spec: TaskSpec) -> int:
    """How many agents stand above the one of this specification."""
    label = spec.labels.get(DEPTH_LABEL, "0")
    return int(label) if label.isdecimal() and len(label) < 4 else 0


def _status_of(state: ThreadState) -> AgentStatus:
    """As far as the queue knows; `completed` for every end."""
    match state.status:
        case ThreadStatus.CLOSED:
            return "closed"
        case ThreadStatus.PARKED:
            return "waiting"
        case ThreadStatus.IDLE:
            return "completed"
        case _ if state.active_turn_id is None:
            return "completed"
        case ThreadStatus.QUEUED:
            return "queued"
        case _:
            return "running"


def _told(thread_id: str, status: AgentStatus, spent: Spent, end: Terminal | None) -> AgentState:
    error = message = None
    match end:
        case TurnCompleted():
            message = end.last_agent_message
        case TurnFailed() if status != "closed":
            status, error = ("failed" if status == "completed" else status), end.error.message
        case TurnInterrupted() if status == "completed":
            status = "interrupted"
        case _:
            pass
    return AgentState(
        thread_id,
        status,
        message,
        error,
        usage=spent.usage,
        cost_usd=spent.cost_usd,
        model_requests=spent.model_requests,
        tool_calls=spent.tool_calls,
    )


def _end(line: RolloutLine) -> Terminal | None:
    return line.payload if isinstance(line, EventMsgLine) and isinstance(line.payload, Terminal) else None


def _say(text: str) -> TurnInput:
    return TurnInput(items=(TextInput(text=text),))


def _bad(message: str) -> ErrorInfo:
    return ErrorInfo.of(ErrorCode.INVALID_REQUEST, message)
