"""The whole way without API and CLI: a real Redis, SQLite, a folder store, the engine, worker processes, the replay model."""

import asyncio
import functools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from patchyard.adapters.catalog import Catalog
from patchyard.adapters.queue import QueueCore, ThreadRegistration
from patchyard.adapters.queue._redis import RedisBackend
from patchyard.adapters.store import FilesystemStore
from patchyard.protocol.events import DurableMsg
from patchyard.protocol.ids import new_id
from patchyard.protocol.ops import Op, Submission, SubmissionReceipt, TextInput, TraceContext, TurnInput
from patchyard.protocol.rollout_lines import EventMsgLine, RolloutLine
from patchyard.protocol.tasks import PatchSummary, TaskSpec, TaskStatus, TaskView
from patchyard.replay import ReplayServer, Script
from patchyard.rollout import decode_line
from patchyard.settings import Settings
from tests.servers import RedisServer
from tests.waiting import PROCESS_S, WAIT_S

ROOT = Path(__file__).parents[2]
TRACE = TraceContext(traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")


class Task:
    """A submitted task, and everything that its thread has said."""

    def __init__(self, service: "Service", thread_id: str, turn_id: str, task_id: str) -> None:
        self.service = service
        self.thread_id = thread_id
        self.turn_id = turn_id
        self.task_id = task_id

    async def lines(self) -> list[RolloutLine]:
        records = await self.service.records(self.thread_id)
        return [decode_line(line) for line in records]

    async def events(self) -> list[DurableMsg]:
        return [line.payload for line in await self.lines() if isinstance(line, EventMsgLine)]

    async def wait_for(self, kind: str, *, count: int = 1) -> list[DurableMsg]:
        """Until the thread has told so many events of a kind; all events so far."""
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            events = await self.events()
            if sum(event.type == kind for event in events) >= count:
                return events
            await self.service.news()
        said = "\n".join(event.model_dump_json(exclude_none=True)[:400] for event in await self.events())
        raise AssertionError(f"no {kind} in {WAIT_S:.0f} s; the thread said:\n{said}\nworkers:\n{self.service.logs()}")

    async def ended(self) -> list[DurableMsg]:
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            events = await self.events()
            if any(event.type in ("turn_completed", "turn_failed", "turn_interrupted") for event in events):
                return events
            await self.service.news()
        return await self.wait_for("turn_completed")

    async def ask(self, op: Op) -> SubmissionReceipt:
        return await self.service.submit(self.thread_id, op)


class Service:
    """Redis, the model and worker processes of one test."""

    def __init__(self, folder: Path, redis: RedisServer, model: ReplayServer) -> None:
        self.folder = folder
        self.redis = redis
        self.model = model
        self.settings = Settings(
            home=folder / "home",
            redis_url=redis.url,
            model_base_url=model.base_url,
            model_api_key="sk-test-secret-value-of-the-model",
            sandbox_image=image(),
        )
        self.queue = QueueCore(redis.url)
        self.catalog = Catalog(self.settings.effective_catalog_url)
        self.store = FilesystemStore(folder / "home" / "objects")
        self.workers: list[subprocess.Popen[bytes]] = []
        self.threads: list[str] = []
        self._position = "0-0"

    async def open(self) -> None:
        await self.queue.open()
        await self.catalog.migrate()
        self._position = await self.queue.fire_position()

    async def news(self) -> None:
        """Until the thread said something, or two seconds."""
        entries = await self.queue.read_fire(self._position)
        if entries:
            self._position = entries[-1].id

    async def records(self, thread_id: str) -> list[bytes]:
        """All records of a thread: from the store, and those that only Redis has."""
        from patchyard.adapters.store import StoredSegments
        from patchyard.rollout import read_lines, thread_prefix

        for _ in range(20):
            stored = [line async for line in read_lines(StoredSegments(self.store), thread_prefix("default", thread_id))]
            rest = await self.queue.read_lines(thread_id, after=stored[-1].ordinal if stored else None, limit=10_000)
            whole = [*stored, *rest]
            if [line.ordinal for line in whole] == list(range(len(whole))):
                return [line.json for line in whole]
        raise AssertionError("the records have a gap")

    async def start_worker(self, *, slots: int = 8, **env: str) -> subprocess.Popen[bytes]:
        """A worker process that is ready."""
        number = len(self.workers) + 1
        log = self.folder / f"worker-{number}.log"
        argv = [sys.executable, "-m", "celery", "-A", "workers.app", "worker", "--pool", "threads", "--concurrency", str(slots)]
        argv += ["--queues", "turns,maintenance", "--without-gossip", "--without-mingle", "--hostname", f"w{number}@test"]
        process = _spawn(argv, self.environment() | env, log)
        self.workers.append(process)
        until = time.monotonic() + PROCESS_S
        while time.monotonic() < until:
            if b" ready." in log.read_bytes():
                return process
            if process.poll() is not None:
                break
            await asyncio.to_thread(_pause_for, process)
        raise AssertionError(f"the worker is not ready:\n{log.read_text()}")

    def environment(self) -> dict[str, str]:
        settings = self.settings
        return {
            **os.environ,
            "PATCHYARD_HOME": str(settings.home),
            "PATCHYARD_REDIS_URL": self.redis.url,
            "PATCHYARD_MODEL_BASE_URL": settings.model_base_url,
            "PATCHYARD_MODEL_API_KEY": "sk-test-secret-value-of-the-model",
            "PATCHYARD_SANDBOX_IMAGE": image(),
            "PYTHONPATH": str(ROOT),
        }

    async def create(self, spec: TaskSpec | Mapping[str, Any]) -> Task:
        """What the API does: a catalog row, the submission, the bell."""
        spec = spec if isinstance(spec, TaskSpec) else TaskSpec.model_validate(spec)
        view = TaskView(
            id=new_id(),
            tenant_id="default",
            thread_id=new_id(),
            turn_id=new_id(),
            status=TaskStatus.QUEUED,
            reason="submitting",
            title="test",
            spec=spec,
            created_at=time.time_ns() // 1_000_000,
        )
        await self.catalog.create_task(view)
        registration = ThreadRegistration(task_id=view.id, spec_json=spec.model_dump_json(exclude_none=True), title="test")
        submission = Submission(
            id=view.turn_id or "",
            tenant_id="default",
            thread_id=view.thread_id,
            op=TurnInput(items=(TextInput(text=spec.instruction),)),
            trace=TRACE,
            idempotency_key=view.id,
            submitted_at=view.created_at,
        )
        self.threads.append(view.thread_id)
        await self.queue.submit(submission, registration=registration)
        await self.catalog.mark_queued("default", view.id)
        return Task(self, view.thread_id, view.turn_id or "", view.id)

    async def submit(self, thread_id: str, op: Op) -> SubmissionReceipt:
        return await self.queue.submit(
            Submission(id=new_id(), tenant_id="default", thread_id=thread_id, op=op, submitted_at=time.time_ns() // 1_000_000)
        )

    async def artefact(self, patch: PatchSummary) -> bytes:
        return await self.store.get(f"default/artefacts/{patch.artefact_id}")

    async def upload(self, data: bytes) -> str:
        artefact_id = new_id()
        await self.store.put(f"default/artefacts/{artefact_id}", data)
        return artefact_id

    async def task_view(self, task: Task) -> TaskView:
        """The catalog's row once it has all that the thread said."""
        async with asyncio.timeout(WAIT_S):
            while True:
                state = await self.queue.thread_state(task.thread_id)
                applied = await self.catalog.applied_through("default", task.thread_id)
                if state is not None and applied >= state.next_ordinal - 1:
                    return await self.catalog.get_task("default", task.task_id)
                await self.news_or(0.2)

    async def news_or(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.news()
        except TimeoutError:
            pass

    def containers(self) -> list[str]:
        """Containers of this service's boxes."""
        done = subprocess.run(
            ["docker", "ps", "-a", "--filter", "label=patchyard.worker", "--format", '{{.Label "patchyard.thread"}}'],
            capture_output=True,
            text=True,
            check=True,
        )
        return [thread for thread in done.stdout.split() if thread in self.threads]

    def logs(self) -> str:
        return "\n".join(path.read_text()[-6000:] for path in sorted(self.folder.glob("worker-*.log")))

    async def close(self) -> None:
        for process in self.workers:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.workers:
            try:
                await asyncio.to_thread(process.wait, WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        await self.queue.close()
        await self.catalog.close()
        await self.store.close()


async def lose(queue: QueueCore, thread_id: str) -> None:
    """The lease of a killed worker has ended. Leases are long: a slow machine must not lose one, and no test waits for one."""
    backend = queue.backend
    assert isinstance(backend, RedisBackend)
    await backend._redis.zadd("py:{0}:leases", {thread_id: 1}, xx=True)
    await backend.run("reap", {"ttl": 0, "limit": 100})


@functools.cache
def image() -> str:
    """Image id of the boxes; built if no image of the same inputs is there, which takes a second otherwise."""
    with tempfile.TemporaryDirectory() as home:
        argv = [sys.executable, str(ROOT / "sandbox_images" / "build.py"), "--home", home]
        return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, timeout=600).stdout.strip()


def _spawn(argv: list[str], env: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(argv, cwd=ROOT, env=env, stdout=out, stderr=out)


def _pause_for(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(0.05)
    except subprocess.TimeoutExpired:
        pass


@asynccontextmanager
async def running_service(folder: Path, script: Script) -> AsyncIterator[Service]:
    redis = RedisServer(folder / "redis")
    redis.start()
    model = ReplayServer(script)
    await model.start()
    service = Service(folder, redis, model)
    try:
        await service.open()
        yield service
        found = [str(violation) for violation in model.violations.all()]
        assert not found, found
    finally:
        await service.close()
        await model.close()
        redis.stop()
