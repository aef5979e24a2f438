"""The supervisor: Redis, then the API, then the workers; and all of it down again in the opposite order."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import patchyard
from patchyard.cli.errors import StartFailed
from patchyard.settings import Settings

from .embedded_redis import check_attached, find_server_binary, write_configuration
from .home import ServiceHome, ServiceState
from .identity import ProcessIdentity, end_process, identify, read_pid_file
from .probe import answers
from .process import ManagedProcess, ProcessSpec, report
from .resp import is_alive

_WORKER_STOP_S = 20.0
"""A worker hands its turns over within a second or two; the rest is for a slow disk."""

_QUIET_START_S = 8.0
"""A worker that fails does so while it loads, well within this."""


_START_S = 90.0
"""API and workers load their libraries; on a slow machine with a cold cache that takes a while. A failure is seen at once."""
_REDIS_START_S = 120.0
"""A big journal is read for a while before the first answer."""
_LOOK_EVERY_S = 0.2


class Supervisor:
    """Runs the processes of one home until it is told to stop."""

    def __init__(self, settings: Settings, *, workers: int, on_ready: Callable[[ServiceState], None]) -> None:
        self._settings = settings
        self._workers = workers
        self._on_ready = on_ready
        self._home = ServiceHome(settings.home)
        self._running: list[ManagedProcess] = []
        self._stop = asyncio.Event()
        self._redis_kind = "external"
        self._adopted_redis: ProcessIdentity | None = None
        self._listener: socket.socket | None = None

    async def run(self) -> None:
        """Start everything, report it, stay until SIGTERM, SIGINT or SIGHUP. StartFailed, AlreadyRunning: nothing is left over."""
        self._home.prepare()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop.set)
        with self._home.lock():
            self._home.rotate_logs()
            stop_orphans(self._home, keep_redis=True)
            keepers: list[asyncio.Task[None]] = []
            try:
                starting = asyncio.ensure_future(self._start_all())
                stopping = asyncio.ensure_future(self._stop.wait())
                await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
                if not starting.done():
                    starting.cancel()
                    await asyncio.wait((starting,))
                    return
                starting.result()
                keepers = [asyncio.ensure_future(process.keep_running()) for process in self._running]
                await stopping
                report("stopping")
            finally:
                await self._stop_all()
                await asyncio.gather(*keepers)

    async def _start_all(self) -> None:
        # The socket belongs to the supervisor and outlives a crashed API: connections wait in it until the next one is up.
        self._listener = _listen(self._settings.api_host, self._settings.api_port)
        url = _url_of(self._listener)
        await self._start_redis()
        # API and workers only need Redis: they load their libraries at the same time, and are judged one after the other.
        api = await self._begin(self._api(self._listener))
        workers = [await self._begin(self._worker(number)) for number in range(1, self._workers + 1)]
        for process in (api, *workers):
            await process.wait_ready()
        state = ServiceState(
            pid=os.getpid(),
            url=url,
            version=patchyard.__version__,
            workers=self._workers,
            redis=self._redis_kind,
            started_at=int(time.time() * 1000),
        )
        self._home.write_state(state)
        self._on_ready(state)

    async def _start_redis(self) -> None:
        if self._settings.redis_url is not None:
            return
        path = self._home.redis_socket
        self._adopted_redis = await _redis_of_before(self._home)
        if self._adopted_redis is not None or is_alive(path):
            check_attached(path, allow_volatile=self._settings.allow_volatile_redis)
            self._redis_kind = "attached"
            if self._adopted_redis is not None:
                report("the Redis of an earlier run is still up and is taken over")
                return
            report(f"a Redis answers at {path} already; it is used and left running")
            return
        path.unlink(missing_ok=True)
        argv = [str(find_server_binary()), str(write_configuration(self._home))]
        self._redis_kind = "started"
        await self._start(
            ProcessSpec(
                name="redis",
                argv=argv,
                ready=lambda _process: asyncio.to_thread(is_alive, path),
                remedy="The log says why. A full disk or a damaged journal in <home>/redis are the usual causes.",
                start_timeout_s=_REDIS_START_S,
            )
        )

    def _api(self, listener: socket.socket) -> ProcessSpec:
        host, port = _address(listener)
        fd = listener.fileno()

        async def ready(_process: ManagedProcess) -> bool:
            return await answers(host, port, "/healthz")

        return ProcessSpec(
            name="api",
            argv=[sys.executable, "-m", "api", "--fd", str(fd)],
            ready=ready,
            env=self._child_env(),
            pass_fds=(fd,),
            remedy="The log says why. `patchyard doctor` checks what the API needs.",
            start_timeout_s=_START_S,
            stop_timeout_s=10,
        )

    def _worker(self, number: int) -> ProcessSpec:
        name = f"worker-{number}"

        async def ready(process: ManagedProcess) -> bool:
            # Celery says so at level INFO; a log that leaves that out is trusted after a while without a crash.
            return " ready." in process.log_text() or (quiet and process.age_s > _QUIET_START_S)

        quiet = self._settings.log_level.upper() not in ("DEBUG", "INFO")

        argv = [sys.executable, "-m", "celery", "-A", "workers.app", "worker"]
        argv += ["--pool", "threads", "--concurrency", str(self._settings.worker_concurrency)]
        argv += ["--queues", "turns,maintenance", "--without-gossip", "--without-mingle"]
        argv += ["--hostname", f"{name}@%h", "--loglevel", "INFO"]
        return ProcessSpec(
            name=name,
            argv=argv,
            ready=ready,
            env=self._child_env(),
            remedy="The log says why. `patchyard doctor` checks what a worker needs.",
            start_timeout_s=_START_S,
            stop_timeout_s=_WORKER_STOP_S,
        )

    def _child_env(self) -> dict[str, str]:
        # Children import the same code as this process, wherever it was started from, and nothing that lies in their folder.
        paths = [str(Path(patchyard.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        port = self._listener.getsockname()[1] if self._listener else self._settings.api_port
        return {
            "PATCHYARD_HOME": str(self._settings.home),
            "PATCHYARD_API_PORT": str(port),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONSAFEPATH": "1",
            "PYTHONUNBUFFERED": "1",
        }

    async def _begin(self, spec: ProcessSpec) -> ManagedProcess:
        process = ManagedProcess(spec, self._home)
        self._running.append(process)
        await process.start()
        return process

    async def _start(self, spec: ProcessSpec) -> None:
        await (await self._begin(spec)).wait_ready()

    async def _stop_all(self) -> None:
        workers = [process for process in self._running if process.spec.name.startswith("worker")]
        await asyncio.gather(*(process.stop() for process in workers))
        for process in reversed([process for process in self._running if process not in workers]):
            await process.stop()
        if self._adopted_redis is not None:
            await asyncio.to_thread(end_process, self._adopted_redis, grace_s=10)
            (self._home.run / "redis.pid").unlink(missing_ok=True)
        if self._listener is not None:
            self._listener.close()


async def _redis_of_before(home: ServiceHome) -> ProcessIdentity | None:
    """The Redis that a killed supervisor left, once it answers.

    Two servers must never write into one folder: one that reads its journal, or hangs, is waited for, and ended when it
    stays silent.
    """
    earlier = read_pid_file(home.run / "redis.pid")
    if earlier is None:
        return None
    deadline = time.monotonic() + _REDIS_START_S
    told = False
    while not await asyncio.to_thread(is_alive, home.redis_socket):
        if identify(earlier.pid) != earlier:
            return None
        if time.monotonic() > deadline:
            report(f"the Redis of an earlier run (pid {earlier.pid}) does not answer and is ended")
            await asyncio.to_thread(end_process, earlier, grace_s=10)
            return None
        if not told:
            report(f"the Redis of an earlier run (pid {earlier.pid}) does not answer yet and is waited for")
            told = True
        await asyncio.sleep(_LOOK_EVERY_S)
    return earlier


class _Address(NamedTuple):
    host: str
    port: int


def _address(listener: socket.socket) -> _Address:
    """Where a client on this machine connects."""
    host, port = listener.getsockname()[:2]
    return _Address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host) or host, port)  # noqa: S104 - compared only


def _url_of(listener: socket.socket) -> str:
    host, port = _address(listener)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise StartFailed(
            f"The API can't listen on {host}:{port}: {error.strerror}.",
            remedy="Stop the program that uses this port, or set PATCHYARD_API_PORT to a free one (0 picks one).",
        ) from error
    return listener


def stop_orphans(home: ServiceHome, *, keep_redis: bool) -> list[str]:
    """End what a killed supervisor left running; the names of what was ended. A Redis may be kept and attached to."""
    ended = []
    files = sorted(home.run.glob("*.pid"), key=lambda file: (file.stem == "redis", file.stem == "api"))
    for file in files:
        identity = read_pid_file(file)
        if identity is not None:
            if keep_redis and file.stem == "redis":
                continue
            report(f"ending {file.stem} (pid {identity.pid}), left behind by an earlier run")
            end_process(identity, grace_s=_WORKER_STOP_S)
            ended.append(file.stem)
        file.unlink(missing_ok=True)
    return ended
