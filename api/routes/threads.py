"""Threads: state, Ops, events, record."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from pydantic import TypeAdapter, ValidationError

from api.auth import Authenticated
from api.deps import deps_of
from api.errors import refuse
from api.routes.streams import LastEventId, event_stream, rollout_stream
from api.tracing import client_trace
from api.watching import Until
from observability import accepting
from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.ops import Op, RecoverTurn, SubmissionReceipt, SuspendTurnAndShutdown
from patchyard.protocol.tasks import OpRequest, ThreadView

router = APIRouter(prefix="/v1/threads", tags=["threads"])

_OP: TypeAdapter[Op] = TypeAdapter(Op)

After = Annotated[int | None, Query(ge=0, description="Only what came after this record. `Last-Event-ID` goes before it.")]


@router.get("/{thread_id}", summary="Show a thread")
async def show(request: Request, thread_id: str, caller: Authenticated) -> ThreadView:
    """Its state in the queue."""
    state = await deps_of(request).desk.thread(caller, thread_id)
    return ThreadView(
        id=state.thread_id,
        tenant_id=state.tenant_id,
        task_id=state.task_id,
        status=state.status.value,
        active_turn_id=state.active_turn_id,
        next_ordinal=state.next_ordinal,
    )


@router.post("/{thread_id}/ops", summary="Ask something of a thread", response_model=SubmissionReceipt)
async def submit(request: Request, thread_id: str, body: OpRequest, caller: Authenticated) -> Response:
    """Input, interrupt, approvals, … The answer says how it was taken; what it does is seen in events.

    409 `thread_closed`; 429 `queue_full` with Retry-After. The same idempotency key again gives the first answer.
    """
    op = _parse(body.op)
    deps = deps_of(request)
    deps.models.check_op(op, caller.tenant_id)
    with accepting(deps.observability, "POST /v1/threads/{thread_id}/ops", client_trace(request.headers)) as trace:
        receipt = await deps.desk.submit_op(caller, thread_id, op, trace=trace, idempotency_key=body.idempotency_key)
    return Response(receipt.model_dump_json(), media_type="application/json")


def _parse(op: dict[str, object]) -> Op:
    try:
        parsed = _OP.validate_python(op)
    except ValidationError as error:
        raise RequestValidationError([{**item, "loc": ("body", "op", *item["loc"])} for item in error.errors()]) from error
    if isinstance(parsed, RecoverTurn | SuspendTurnAndShutdown):
        raise refuse(ErrorCode.INVALID_REQUEST, f"op.type: {parsed.type} is only for the service itself.")
    return parsed


@router.get("/{thread_id}/events", summary="The thread's events (SSE)", response_class=StreamingResponse)
async def events(
    request: Request,
    thread_id: str,
    caller: Authenticated,
    after: After = None,
    last_event_id: LastEventId = None,
    until: Until = "never",
) -> Response:
    """All so far, then live, until the thread is closed; with `until=turn_end` until no turn is left."""
    deps = deps_of(request)
    await deps.desk.thread(caller, thread_id)
    return event_stream(deps, caller.tenant_id, thread_id, after=after, last_event_id=last_event_id, until=until)


@router.get("/{thread_id}/rollout", summary="The thread's record (JSON lines)", response_class=StreamingResponse)
async def rollout(request: Request, thread_id: str, caller: Authenticated) -> Response:
    """Every durable line so far."""
    deps = deps_of(request)
    await deps.desk.thread(caller, thread_id)
    return await rollout_stream(deps, caller.tenant_id, thread_id)
