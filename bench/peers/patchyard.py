"""Patchyard itself, as its users run it: `patchyard up`, then tasks through the SDK."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import bench.service
from bench.peers.meter import Meter
from bench.peers.trajectory import PROMPT
from patchyard.client import PatchyardClient
from patchyard.protocol.events import PatchProduced, TaskStatusChanged, VerificationCompleted
from patchyard.protocol.policies import ApprovalMode, WorkspaceWrite
from patchyard.protocol.tasks import GitSource, TaskSpec, VerifySpec

VERIFY = "python3 -m pytest -q -p no:cacheprovider tests"
_FIXED_LINE = b"\n+    return a + b\n"
_TASK_LIMIT_S = 300.0


def image_id() -> str:
    """The sandbox image that the set-up built."""
    return bench.service.sandbox_image()


class Peer:
    """A running service. `run` submits a task for each repository, `at_once` of them at a time."""

    def __init__(self, client: PatchyardClient, supervisor_pid: int, *, verify: bool = False) -> None:
        self._client = client
        self._supervisor_pid = supervisor_pid
        self._verify = verify

    def with_verification(self) -> "Peer":
        """The same service; each patch is also verified in a container of its own."""
        return Peer(self._client, self._supervisor_pid, verify=True)

    async def run(self, repositories: list[Path], at_once: int, meter: Meter) -> int:
        """How many patches hold the fix."""
        meter.watch(self._supervisor_pid)
        gate = asyncio.Semaphore(at_once)

        async def one(repository: Path) -> bool:
            async with gate, asyncio.timeout(_TASK_LIMIT_S):
                return await self._fix(repository)

        return sum(await asyncio.gather(*(one(repository) for repository in repositories)))

    async def _fix(self, repository: Path) -> bool:
        spec = TaskSpec(
            repository=GitSource(url=str(repository)),
            instruction=PROMPT,
            approval=ApprovalMode.NEVER,
            sandbox=WorkspaceWrite(),
            verify=VerifySpec(command=VERIFY) if self._verify else None,
        )
        created = await self._client.create_task(spec)
        patch_id, verified, state = None, not self._verify, None
        async for event in self._client.task_events(created.task_id):
            if isinstance(event.msg, PatchProduced):
                patch_id = event.msg.patch.artefact_id
            elif isinstance(event.msg, VerificationCompleted):
                verified = event.msg.result.passed
            elif isinstance(event.msg, TaskStatusChanged):
                state = event.msg
        if patch_id is None or not verified:
            print(f"task {created.task_id} has no verified patch: {state}", file=sys.stderr, flush=True)
        return patch_id is not None and verified and _FIXED_LINE in await self._client.download(patch_id)


@contextlib.asynccontextmanager
async def service(home: Path, model_port: int, image: str) -> AsyncIterator[Peer]:
    """`patchyard up` in `home`, with the model at this port; down again at the end."""
    settings = {"SANDBOX_IMAGE": image, "MODEL_REQUEST_RETRIES": "0"}
    with bench.service.service(home, f"http://127.0.0.1:{model_port}/v1", **settings) as env:
        state = bench.service.state(env)
        async with PatchyardClient(state["url"], (home / "token").read_text().strip()) as client:
            yield Peer(client, state["pid"])
