"""The SDK: everything that the REST API offers, as typed coroutines."""

import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from patchyard.protocol.approvals import ApprovalListResponse, ApprovalView
from patchyard.protocol.events import Event
from patchyard.protocol.ids import new_id
from patchyard.protocol.ops import Op, SubmissionReceipt
from patchyard.protocol.service import DoctorReport, Readiness, ServiceInfo
from patchyard.protocol.tasks import (
    ArtefactView,
    OpRequest,
    TaskCreateRequest,
    TaskCreateResponse,
    TaskListResponse,
    TaskSpec,
    TaskStatus,
    TaskView,
    ThreadView,
)

from ._events import EventFeed
from ._transport import RetryPolicy, Transport, connection_failed
from .errors import BadAnswer

M = TypeVar("M", bound=BaseModel)

_CHUNK = 256 * 1024
RECONNECT_FOR_S = 60.0
"""How long a broken event stream is tried again."""


class PatchyardClient:
    """A connection to one service. Use it as `async with`, for any number of calls at once. All raise PatchyardError."""

    def __init__(
        self,
        base_url: str,
        token: str | None = None,
        *,
        retry: RetryPolicy | None = None,
        timeout_s: float = 30,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        headers = {"user-agent": "patchyard-sdk", "accept-encoding": "identity"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        http = httpx.AsyncClient(base_url=base_url, headers=headers, timeout=timeout_s, limits=limits, transport=transport)
        self._transport = Transport(http, retry or RetryPolicy())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    # --- service

    async def info(self) -> ServiceInfo:
        """Who answers, and what this token may do."""
        return await self._get(ServiceInfo, "/v1/info")

    async def readiness(self) -> Readiness:
        """The parts behind the API; a service that is not ready answers too."""
        return _parse(Readiness, await self._transport.request("GET", "/readyz", repeatable=False, also_good=(503,)))

    async def doctor(self) -> DoctorReport:
        """Checks of the machine that the workers run on. Takes seconds."""
        return await self._get(DoctorReport, "/v1/doctor")

    # --- tasks

    async def create_task(self, spec: TaskSpec, *, idempotency_key: str | None = None) -> TaskCreateResponse:
        """Submit a task. Without a key one is made, so that a retry after a lost answer never submits twice."""
        request = TaskCreateRequest(spec=spec, idempotency_key=idempotency_key or new_id())
        return await self._post(TaskCreateResponse, "/v1/tasks", request, repeatable=True)

    async def get_task(self, task_id: str) -> TaskView:
        """One task. NotFound."""
        return await self._get(TaskView, f"/v1/tasks/{task_id}")

    async def list_tasks_page(
        self,
        *,
        status: TaskStatus | None = None,
        repository: str | None = None,
        query: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> TaskListResponse:
        """One page, newest first."""
        params = {"status": status, "repository": repository, "query": query, "cursor": cursor, "limit": limit}
        return await self._get(TaskListResponse, "/v1/tasks", params)

    async def list_tasks(
        self, *, status: TaskStatus | None = None, repository: str | None = None, query: str | None = None
    ) -> AsyncIterator[TaskView]:
        """All tasks that match, newest first, page by page as you read on."""
        cursor: str | None = None
        while True:
            page = await self.list_tasks_page(status=status, repository=repository, query=query, cursor=cursor)
            for task in page.data:
                yield task
            cursor = page.next_cursor
            if cursor is None:
                return

    async def cancel_task(self, task_id: str) -> TaskView:
        """Stop a task; one that has ended stays as it is."""
        response = await self._transport.request("POST", f"/v1/tasks/{task_id}/cancel", repeatable=True)
        return _parse(TaskView, response)

    async def trace(self, task_id: str) -> dict[str, Any]:
        """The task's span tree."""
        return _json(await self._transport.request("GET", f"/v1/tasks/{task_id}/trace"))

    # --- events and Ops

    def task_events(
        self, task_id: str, *, after: int | None = None, until: str | None = None, reconnect_for_s: float = RECONNECT_FOR_S
    ) -> AsyncGenerator[Event, None]:
        """The task's events after ordinal `after` (None: from the start), live. Ends with its turn; `until="never"` goes on."""
        return self._feed(f"/v1/tasks/{task_id}/events", after, until, reconnect_for_s)

    def thread_events(
        self, thread_id: str, *, after: int | None = None, until: str | None = None, reconnect_for_s: float = RECONNECT_FOR_S
    ) -> AsyncGenerator[Event, None]:
        """The thread's events, live, without an end; `until="turn_end"` ends when no turn is left."""
        return self._feed(f"/v1/threads/{thread_id}/events", after, until, reconnect_for_s)

    def _feed(self, path: str, after: int | None, until: str | None, reconnect_for_s: float) -> AsyncGenerator[Event, None]:
        return EventFeed(self._transport, path, after=after, until=until, reconnect_for_s=reconnect_for_s).events()

    async def submit(self, thread_id: str, op: Op, *, idempotency_key: str | None = None) -> SubmissionReceipt:
        """Ask something of a thread. Conflict when it is closed, QueueFull when it is full."""
        request = OpRequest(op=op.model_dump(mode="json", exclude_none=True), idempotency_key=idempotency_key or new_id())
        return await self._post(SubmissionReceipt, f"/v1/threads/{thread_id}/ops", request, repeatable=True)

    async def get_thread(self, thread_id: str) -> ThreadView:
        """One thread. NotFound."""
        return await self._get(ThreadView, f"/v1/threads/{thread_id}")

    # --- approvals

    async def list_approvals_page(
        self, *, repository: str | None = None, revoked: bool = False, cursor: str | None = None, limit: int = 50
    ) -> ApprovalListResponse:
        """One page of what people allowed on repositories, newest first. `revoked`: also what counts no more."""
        params = {"repository": repository, "revoked": str(revoked).lower(), "cursor": cursor, "limit": limit}
        return await self._get(ApprovalListResponse, "/v1/approvals", params)

    async def revoke_approval(self, approval_id: str) -> ApprovalView:
        """Let tasks ask again. Twice is harmless. NotFound."""
        return _parse(ApprovalView, await self._transport.request("DELETE", f"/v1/approvals/{approval_id}", repeatable=True))

    # --- artefacts and records

    async def upload(self, content: bytes | Path) -> ArtefactView:
        """Store an artefact: a file (read piece by piece) or bytes. Raises BadAnswer when it arrived damaged."""
        digest = hashlib.sha256()

        async def pieces() -> AsyncIterator[bytes]:
            if isinstance(content, bytes):
                digest.update(content)
                yield content
                return
            with content.open("rb") as file:
                while piece := file.read(_CHUNK):
                    digest.update(piece)
                    yield piece

        artefact = _parse(ArtefactView, await self._transport.send_stream("POST", "/v1/artefacts", pieces()))
        if artefact.sha256 != digest.hexdigest():
            raise BadAnswer("The upload arrived damaged: the checksums differ.", remedy="Upload it again.")
        return artefact

    async def download(self, artefact_id: str) -> bytes:
        """An artefact. NotFound."""
        return await self._bytes(f"/v1/artefacts/{artefact_id}")

    async def patch(self, task_id: str) -> bytes:
        """The task's patch, as `git apply` takes it. NotFound while there is none."""
        return await self._bytes(f"/v1/tasks/{task_id}/patch")

    async def verify_log(self, task_id: str) -> bytes:
        """The whole output of the task's last verification. NotFound while there is none."""
        return await self._bytes(f"/v1/tasks/{task_id}/verify-log")

    async def rollout(self, task_id: str) -> AsyncIterator[bytes]:
        """The task's record: JSON lines, in pieces of any size."""
        try:
            async with self._transport.open_stream(f"/v1/tasks/{task_id}/rollout", silent_for_s=60) as response:
                async for piece in response.aiter_raw():
                    yield piece
        except httpx.TransportError as error:
            raise connection_failed(self._transport.base_url, error) from error

    # --- inside

    async def _get(self, model: type[M], path: str, params: dict[str, Any] | None = None) -> M:
        return _parse(model, await self._transport.request("GET", path, params=params))

    async def _post(self, model: type[M], path: str, body: BaseModel, *, repeatable: bool) -> M:
        response = await self._transport.request("POST", path, json=body.model_dump_json(), repeatable=repeatable)
        return _parse(model, response)

    async def _bytes(self, path: str) -> bytes:
        return (await self._transport.request("GET", path)).content


def _parse(model: type[M], response: httpx.Response) -> M:
    try:
        return model.model_validate_json(response.content)
    except ValidationError as error:
        raise BadAnswer(
            f"{response.request.url} answered something else than a {model.__name__} ({error.error_count()} differences).",
            remedy="Client and service must be of one version: compare `patchyard --version` with GET /v1/info.",
        ) from error


def _json(response: httpx.Response) -> dict[str, Any]:
    value = json.loads(response.content)
    return value if isinstance(value, dict) else {"data": value}
