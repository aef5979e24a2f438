"""Tasks."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from api.auth import Authenticated
from api.deps import deps_of
from api.errors import refuse
from api.routes.artefacts import send_artefact
from api.routes.streams import LastEventId, event_stream, rollout_stream
from api.sources import check_sources
from api.tracing import client_trace
from api.watching import Until
from observability import accepting
from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.tasks import TaskCreateRequest, TaskCreateResponse, TaskListResponse, TaskStatus, TaskView
from patchyard.rollout import TraceTree, build_trace, decode_line

router = APIRouter(prefix="/v1/tasks", tags=["tasks"])

After = Annotated[int | None, Query(ge=0, description="Only what came after this record. `Last-Event-ID` goes before it.")]


@router.post("", status_code=202, summary="Submit a task", response_model=TaskCreateResponse)
async def create(request: Request, body: TaskCreateRequest, caller: Authenticated) -> Response:
    """Accepted once: the same idempotency key again gives the first answer. `traceparent` of the request is kept."""
    deps = deps_of(request)
    deps.models.check(body.spec.model, caller.tenant_id)
    await check_sources(body.spec, caller, deps.store)
    with accepting(deps.observability, "POST /v1/tasks", client_trace(request.headers)) as trace_context:
        created = await deps.desk.create(caller, body, trace_context)
    headers = {"location": f"/v1/tasks/{created.task_id}"}
    return Response(created.model_dump_json(), status_code=202, media_type="application/json", headers=headers)


@router.get("", summary="List tasks, newest first", response_model=TaskListResponse)
async def list_tasks(
    request: Request,
    caller: Authenticated,
    status: TaskStatus | None = None,
    repository: Annotated[str | None, Query(max_length=2048)] = None,
    query: Annotated[str | None, Query(max_length=1000, description="Words in title, instruction or repository.")] = None,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """A page; `next_cursor` leads to the next one, with the same filters."""
    page = await deps_of(request).catalog.list_tasks(
        caller.tenant_id, status=status, repository=repository, query=query, cursor=cursor, limit=limit
    )
    return _json(page.model_dump_json())


@router.get("/{task_id}", summary="Show a task", response_model=TaskView)
async def show(request: Request, task_id: str, caller: Authenticated) -> Response:
    """As far as its thread's records go at this moment."""
    return _json((await deps_of(request).desk.view(caller, task_id)).model_dump_json())


@router.post("/{task_id}/cancel", status_code=202, summary="Cancel a task", response_model=TaskView)
async def cancel(request: Request, task_id: str, caller: Authenticated) -> Response:
    """A waiting task ends at once, a running one within a second; one that has ended stays as it is."""
    deps = deps_of(request)
    with accepting(deps.observability, "POST /v1/tasks/{task_id}/cancel", client_trace(request.headers)) as trace_context:
        task = await deps.desk.cancel(caller, task_id, trace_context)
    return _json(task.model_dump_json(), status_code=202)


@router.get("/{task_id}/patch", summary="The task's patch", response_class=StreamingResponse)
async def patch(request: Request, task_id: str, caller: Authenticated) -> Response:
    """As `git apply` takes it. 404 while there is none."""
    deps = deps_of(request)
    task = await deps.desk.view(caller, task_id)
    if task.patch is None:
        raise refuse(ErrorCode.NOT_FOUND, f"Task {task_id} has no patch: it is {task.status} ({task.reason}).")
    return await send_artefact(deps.store, caller.tenant_id, task.patch.artefact_id, "text/x-diff; charset=utf-8")


@router.get("/{task_id}/verify-log", summary="Output of the last verification", response_class=StreamingResponse)
async def verify_log(request: Request, task_id: str, caller: Authenticated) -> Response:
    """The whole output. 404 while there is none."""
    deps = deps_of(request)
    task = await deps.desk.view(caller, task_id)
    if task.verify is None or task.verify.log_artefact_id is None:
        asked = "no verify command was given" if task.spec.verify is None else "the verification has not run"
        raise refuse(ErrorCode.NOT_FOUND, f"Task {task_id} has no verification log: {asked}.")
    return await send_artefact(deps.store, caller.tenant_id, task.verify.log_artefact_id, "text/plain; charset=utf-8")


@router.get("/{task_id}/events", summary="The task's events (SSE)", response_class=StreamingResponse)
async def events(
    request: Request,
    task_id: str,
    caller: Authenticated,
    after: After = None,
    last_event_id: LastEventId = None,
    until: Until = "turn_end",
) -> Response:
    """All so far, then live. Ends with its turn (`event: stream_end`), or never with `until=never`."""
    deps = deps_of(request)
    task = await deps.catalog.get_task(caller.tenant_id, task_id)
    return event_stream(deps, caller.tenant_id, task.thread_id, after=after, last_event_id=last_event_id, until=until)


@router.get("/{task_id}/rollout", summary="The task's record (JSON lines)", response_class=StreamingResponse)
async def rollout(request: Request, task_id: str, caller: Authenticated) -> Response:
    """Every durable line of the task's thread."""
    deps = deps_of(request)
    task = await deps.catalog.get_task(caller.tenant_id, task_id)
    return await rollout_stream(deps, caller.tenant_id, task.thread_id)


@router.get("/{task_id}/trace", summary="The task's span tree")
async def trace(request: Request, task_id: str, caller: Authenticated) -> TraceTree:
    """Queue wait, model requests, commands, verification, rebuilt from the record: no collector is needed."""
    deps = deps_of(request)
    task = await deps.catalog.get_task(caller.tenant_id, task_id)
    lines = [decode_line(line.json) async for line in deps.records.lines(caller.tenant_id, task.thread_id)]
    return replace(build_trace(lines), task_id=task.id, thread_id=task.thread_id, trace_id=task.trace_id)


def _json(body: str, *, status_code: int = 200) -> Response:
    return Response(body, status_code=status_code, media_type="application/json")
