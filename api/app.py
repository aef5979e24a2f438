"""The application factory: `uvicorn api.app:create_app --factory`, or `python -m api` with the right server settings."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from patchyard import __version__
from patchyard.protocol.service import Problem
from patchyard.settings import Settings, load

from . import errors
from .deps import Deps, build
from .guard import Guard
from .routes import approvals, artefacts, health, service, tasks, threads

_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text, "content": {errors.PROBLEM_TYPE: {}}}
    for status, text in {
        "4XX": "Refused; `code` says why and `detail` what to do.",
        "5XX": "A part behind the API is away; `retryable` says whether to try again.",
    }.items()
}


def create_app(settings: Settings | None = None, *, deps: Deps | None = None) -> FastAPI:
    """The API. `deps` replaces the parts that `settings` would give; both None: settings from the environment."""
    parts = deps or build(settings or load())

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        try:
            await parts.open()
            yield
        finally:
            await parts.close()

    app = FastAPI(
        title="Patchyard",
        version=__version__,
        description="Runs coding agents in ephemeral containers. Errors are RFC 9457 problem documents with a `code`.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses=_REFUSALS,
    )
    app.state.deps = parts
    for router in (health.router, service.router, tasks.router, threads.router, approvals.router, artefacts.router):
        app.include_router(router)
    errors.install(app)
    app.add_middleware(Guard, max_upload_bytes=parts.settings.max_upload_bytes)
    return app
