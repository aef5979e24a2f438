"""The API over real HTTP with an in-memory queue and store and a SQLite catalog; and a worker that plays a turn by hand."""

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from api.__main__ import Server
from api.app import create_app
from api.deps import Deps, assemble
from patchyard.adapters.catalog import Catalog
from patchyard.adapters.queue import QueueCore, QueueThreadChannel
from patchyard.adapters.store import OpenStore
from patchyard.client import PatchyardClient, RetryPolicy
from patchyard.protocol import events
from patchyard.protocol.model_items import TokenUsage
from patchyard.protocol.tasks import NoSource, TaskSpec, TaskStatus
from patchyard.settings import Settings
from patchyard.testing.queue import MemoryQueueCore
from patchyard.testing.store import MemoryStore
from tests.waiting import WAIT_S

TOKEN = "the-local-token"
OTHER_TOKEN = "a-token-of-another-tenant"
AUTH = {"authorization": f"Bearer {TOKEN}"}
OTHER_AUTH = {"authorization": f"Bearer {OTHER_TOKEN}"}
FAST = RetryPolicy(attempts=2, wait_when_full_s=0)


@dataclass
class CountingBell:
    """A doorbell that nobody hears."""

    rings: int = 0

    def ring(self) -> None:
        self.rings += 1

    def close(self) -> None:
        return


@dataclass
class Api:
    """A running API."""

    url: str
    deps: Deps
    bell: CountingBell
    server: Server
    _clients: list[httpx.AsyncClient] = field(default_factory=list)

    @property
    def queue(self) -> QueueCore:
        return self.deps.queue

    @property
    def memory(self) -> Any:
        """The in-memory queue's server, to take it away."""
        assert isinstance(self.deps.queue, MemoryQueueCore)
        return self.deps.queue.memory

    @property
    def http(self) -> httpx.AsyncClient:
        if not self._clients:
            self._clients.append(httpx.AsyncClient(base_url=self.url, headers=AUTH, timeout=WAIT_S, trust_env=False))
        return self._clients[0]

    def sdk(self, token: str = TOKEN, *, retry: RetryPolicy = FAST) -> PatchyardClient:
        return PatchyardClient(self.url, token, retry=retry)

    async def worker(self) -> "Worker":
        """Claim the next thread as a worker would."""
        claim = await self.queue.claim("worker")
        assert claim is not None
        return Worker(QueueThreadChannel(self.queue, claim), claim.thread_id)


@dataclass
class Worker:
    """Holds one thread."""

    channel: QueueThreadChannel
    thread_id: str
    turn_id: str = ""

    async def start(self) -> None:
        first = await self.channel.receive()
        self.turn_id = first.id
        started = events.TurnStarted(model="m", submitted_at=first.submitted_at, started_at=first.submitted_at + 5)
        running = events.TaskStatusChanged(status=TaskStatus.RUNNING, reason="running")
        await self.channel.commit([running, started], turn_id=first.id, submission_id=first.id, consumed=[first.id])

    async def say(self, *messages: events.DurableMsg) -> None:
        await self.channel.commit(list(messages), turn_id=self.turn_id)

    async def finish(self, *before: events.DurableMsg, after: Sequence[events.DurableMsg] = ()) -> None:
        done = events.TaskStatusChanged(status=TaskStatus.SUCCEEDED, reason="completed")
        end = events.TurnCompleted(
            usage=TokenUsage(input_tokens=10, output_tokens=3, total_tokens=13), model_requests=1, tool_calls=0, duration_ms=7
        )
        assert await self.channel.finish_turn([*before, end, done, *after], turn_id=self.turn_id)


def settings(home: Path, **values: Any) -> Settings:
    return Settings(home=home, token=TOKEN, **values)


@asynccontextmanager
async def serving(
    home: Path, *, queue: QueueCore | None = None, store: OpenStore | None = None, port: int = 0, **values: Any
) -> AsyncIterator[Api]:
    """The API on a free port of this machine."""
    bell = CountingBell()
    deps = assemble(
        settings(home, **values),
        queue=queue or MemoryQueueCore(),
        catalog=Catalog(f"sqlite:///{home}/catalog.db"),
        store=store or MemoryStore(),
        doorbell=bell,
    )
    listener = socket.create_server(("127.0.0.1", port))
    config = uvicorn.Config(
        create_app(deps.settings, deps=deps), log_config=None, lifespan="on", timeout_graceful_shutdown=3600
    )
    server = Server(config, deps)
    server.capture_signals = _no_signals  # type: ignore[method-assign]
    task = asyncio.create_task(server.serve(sockets=[listener]))
    api = Api(f"http://127.0.0.1:{listener.getsockname()[1]}", deps, bell, server)
    try:
        await _until_started(server, task)
        await deps.catalog.create_token("other", "test", hashlib.sha256(OTHER_TOKEN.encode()).hexdigest())
        yield api
    finally:
        for client in api._clients:
            await client.aclose()
        server.should_exit = True
        await task


class _no_signals:
    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        return


async def _until_started(server: uvicorn.Server, task: "asyncio.Task[None]") -> None:
    async with asyncio.timeout(WAIT_S):
        while not server.started:
            assert not task.done(), task.exception()
            await asyncio.sleep(0)


def spec(**fields: Any) -> TaskSpec:
    return TaskSpec(**{"repository": NoSource(), "instruction": "Fix the parser.\nIt crashes.", **fields})


def body(**fields: Any) -> dict[str, Any]:
    return {"spec": spec(**fields).model_dump(mode="json")}
