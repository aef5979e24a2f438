"""Plays cases with both programs, two at a time, in an event loop of its own."""

import asyncio
import os
import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from patchyard.adapters.sandbox import DockerBoxes
from patchyard.replay import ReplayServer
from tests.conformance.codex_cli import codex_program, patchyard_session
from tests.conformance.codex_cli.cases import Case, LiveScript
from tests.conformance.codex_cli.shape import Observed, observe

AT_ONCE = 2
LIMIT_S = 120
"""Of one program and one case."""
DOCKER_HOST = os.environ.get("PATCHYARD_DOCKER_HOST", "unix:///var/run/docker.sock")


@dataclass(frozen=True)
class Pair:
    """What both programs did."""

    codex: Observed
    patchyard: Observed


class Runner:
    """Starts with all cases; `result` waits for one. Use it as a context manager."""

    def __init__(self, cases: Sequence[Case], *, program: Path, image: str, folder: Path) -> None:
        self._cases, self._program, self._image, self._folder = cases, program, image, folder
        self._results: dict[str, Future[Pair]] = {case.name: Future() for case in cases}
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="codex-and-patchyard")
        self._stop = threading.Event()

    def __enter__(self) -> "Runner":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def result(self, name: str) -> Pair:
        """What came of a case; what went wrong in it is raised."""
        return self._results[name].result(timeout=LIMIT_S * len(self._cases))

    async def _main(self) -> None:
        boxes = DockerBoxes(DOCKER_HOST, concurrency=AT_ONCE, installation=f"test-{uuid.uuid4()}")
        places = asyncio.Semaphore(AT_ONCE)
        try:
            await asyncio.gather(*(self._one(case, boxes, places) for case in self._cases))
        finally:
            await boxes.close()

    async def _one(self, case: Case, boxes: DockerBoxes, places: asyncio.Semaphore) -> None:
        result = self._results[case.name]
        async with places:
            if self._stop.is_set():
                result.cancel()
                return
            try:
                async with asyncio.timeout(LIMIT_S):
                    codex = await self._codex(case)
                async with asyncio.timeout(LIMIT_S):
                    patchyard = await self._patchyard(case, boxes)
                result.set_result(Pair(codex, patchyard))
            except Exception as error:  # noqa: BLE001 - raised again where the result is asked for
                result.set_exception(error)

    def _place(self, program: str, case: Case) -> Path:
        return self._folder / program / str(self._cases.index(case))

    async def _codex(self, case: Case) -> Observed:
        script = LiveScript(case)
        server = ReplayServer(script)
        await server.start()
        try:
            home = codex_program.CodexHome(self._program, self._place("codex", case), server.base_url, case.sockets)
            home.make()
            case.lay_files(home.workspace)
            if case.is_conversation:
                ends = await codex_program.play_conversation(home, case, script.requests)
            else:
                ends = await codex_program.play_exec(home, case)
            return observe(server.log.all(), ends, home.workspace)
        finally:
            await server.close()

    async def _patchyard(self, case: Case, boxes: DockerBoxes) -> Observed:
        script = LiveScript(case)
        server = ReplayServer(script)
        await server.start()
        try:
            workspace = self._place("patchyard", case)
            workspace.mkdir(parents=True)
            case.lay_files(workspace)
            if os.getuid() == 0:
                for path in (workspace, *workspace.rglob("*")):
                    os.chown(path, 1000, 1000)
            ends = await patchyard_session.play(
                boxes, self._image, workspace, case, base_url=server.base_url, requests=script.requests
            )
            return observe(server.log.all(), ends, workspace)
        finally:
            await server.close()
