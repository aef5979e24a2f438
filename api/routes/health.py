"""Whether the process lives, and whether its parts answer. Without a token: load balancers and the supervisor ask."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response

from api.deps import Deps, deps_of
from api.failures import KNOWN
from patchyard.protocol.service import ComponentState, Readiness

router = APIRouter(tags=["health"])

_TIMEOUT_S = 5.0


@router.get("/healthz", summary="The process lives")
async def healthz() -> dict[str, str]:
    """Always 200: it says nothing about the parts behind the API."""
    return {"status": "ok"}


@router.get("/readyz", summary="The parts answer", response_model=Readiness, responses={503: {"model": Readiness}})
async def readyz(request: Request) -> Response:
    """Queue, catalog and store, each with its state. 503 when one of them fails."""
    deps = deps_of(request)
    components = await asyncio.gather(
        _probe("queue", lambda: _queue(deps)),
        _probe("catalog", lambda: _quiet(deps.catalog.check(), "answers")),
        _probe("store", lambda: _quiet(deps.store.check(), "answers")),
    )
    readiness = Readiness(ready=all(part.state != "failed" for part in components), components=tuple(components))
    body = readiness.model_dump_json(exclude_none=True)
    return Response(body, status_code=200 if readiness.ready else 503, media_type="application/json")


async def _queue(deps: Deps) -> ComponentState:
    health = await deps.queue.check()
    detail = f"{health.server} {health.version}, appendfsync {health.appendfsync}"
    if health.problems:
        text = "; ".join(problem.problem for problem in health.problems)
        remedy = "; ".join(problem.remedy for problem in health.problems)
        state: Literal["warning", "failed"] = "warning" if health.usable else "failed"
        return ComponentState(name="queue", state=state, detail=f"{detail}: {text}", remedy=remedy)
    return ComponentState(name="queue", state="ok", detail=detail)


async def _quiet(check: Awaitable[None], detail: str) -> ComponentState:
    await check
    return ComponentState(name="", state="ok", detail=detail)


async def _probe(name: str, ask: Callable[[], Awaitable[ComponentState]]) -> ComponentState:
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return (await ask()).model_copy(update={"name": name})
    except TimeoutError:
        return ComponentState(name=name, state="failed", detail=f"no answer within {_TIMEOUT_S:.0f} s")
    except KNOWN as error:
        return ComponentState(name=name, state="failed", detail=error.info.message)
