"""Responses that tasks and threads share: events and rollouts."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated

from fastapi import Header
from fastapi.responses import Response, StreamingResponse

from api.deps import Deps
from api.errors import refuse
from api.sse import EventStream
from api.watching import Until
from patchyard.protocol.errors import ErrorCode
from patchyard.rollout.ports import NumberedLine

LastEventId = Annotated[
    str | None, Header(alias="last-event-id", description="Id of the last event that was seen: only later ones follow.")
]

NDJSON = "application/x-ndjson"


def event_stream(
    deps: Deps, tenant_id: str, thread_id: str, *, after: int | None, last_event_id: str | None, until: Until
) -> EventStream:
    """The events of a thread that the caller may see. ApiError invalid_request: Last-Event-ID is no ordinal."""
    if last_event_id is not None and last_event_id.strip():
        if not last_event_id.strip().isdigit():
            raise refuse(ErrorCode.INVALID_REQUEST, "Last-Event-ID must be the `id:` of an event of this stream: a number.")
        after = int(last_event_id)
    frames = deps.watching.frames(tenant_id, thread_id, after=after, until=until)
    return EventStream(frames, stopping=deps.stopping)


async def rollout_stream(deps: Deps, tenant_id: str, thread_id: str) -> Response:
    """The record of a thread that the caller may see. A part that is away is an error before the first byte."""
    lines = deps.records.lines(tenant_id, thread_id)
    first = await anext(lines, None)
    return StreamingResponse(_pieces(first, lines), media_type=NDJSON)


async def _pieces(first: NumberedLine | None, rest: AsyncGenerator[NumberedLine, None]) -> AsyncIterator[bytes]:
    if first is None:
        return
    yield first.json + b"\n"
    async for line in rest:
        yield line.json + b"\n"
