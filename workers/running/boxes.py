"""The turn's box: mirror, checkout, set-up image and container. Begun in the background, waited for only when needed."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeVar

from observability import Attr, Metric, Metrics, ThreadTelemetry
from observability.names import SANDBOX, WORKSPACE
from patchyard.adapters.sandbox import Box, BoxMount, BoxSpec, DockerBoxes
from patchyard.adapters.store import StoreError
from patchyard.adapters.workspace import (
    Patch,
    PreparedBase,
    Workspace,
    WorkspaceError,
    WorkspaceManager,
    compute_diff,
    lay_patch,
)
from patchyard.agent.ports import Sandbox, SandboxError
from patchyard.protocol.events import WorkspacePrepared
from patchyard.protocol.policies import DangerFullAccess, SandboxPolicy
from patchyard.protocol.tasks import NoSource, TaskSpec
from patchyard.settings import Settings

from .artefacts import Snapshots, patiently
from .channel import WorkerChannel
from .owners import Owner, box_labels
from .setup import SetupImages

log = logging.getLogger(__name__)

T = TypeVar("T")

SNAPSHOT_EVERY_S = 3.0
"""Least time between two snapshots of a running turn."""
SNAPSHOT_SHARE = 20
"""A snapshot that took long is taken less often: at most this share of the time goes into them."""


@dataclass(frozen=True)
class BoxParts:
    """What boxes are made with; one per process."""

    settings: Settings
    engine: DockerBoxes
    workspaces: WorkspaceManager
    setups: SetupImages
    snapshots: Snapshots
    metrics: Metrics


class _Opened(NamedTuple):
    workspace: Workspace
    adopted: bool


class TurnBoxes:
    """Implements agent.ports.SandboxSource for one claimed thread."""

    def __init__(
        self,
        parts: BoxParts,
        owner: Owner,
        *,
        spec: TaskSpec,
        policy: SandboxPolicy,
        channel: WorkerChannel,
        telemetry: ThreadTelemetry,
        segment: int,
    ) -> None:
        self._parts = parts
        self._owner = owner
        self._spec = spec
        self._policy = policy
        self._channel = channel
        self._telemetry = telemetry
        self._segment = segment
        self._base_task: asyncio.Task[PreparedBase] | None = None
        self._box_task: asyncio.Task[Box] | None = None
        self._workspace: Workspace | None = None
        self._snapshot_task: asyncio.Task[None] | None = None
        self._next_snapshot = 0.0
        self._snapshots_taken = 0
        self._kept: bytes | None = None
        self._dirty = False
        channel.on_outputs = self._outputs_came

    # --- the port

    def prepare(self) -> None:
        """See agent.ports.SandboxSource."""
        self._begun()

    async def get(self) -> Sandbox:
        """See agent.ports.SandboxSource."""
        return await self._box()

    async def instructions(self, folder: str = "") -> Sequence[tuple[str, str]]:
        """See agent.ports.SandboxSource."""
        if isinstance(self._spec.repository, NoSource):
            return ()
        with _as_sandbox_error():
            return await self._parts.workspaces.instructions(await self._base(), folder=folder)

    async def base_file(self, path: str) -> bytes | None:
        """See agent.ports.SandboxSource."""
        if isinstance(self._spec.repository, NoSource):
            return None
        with _as_sandbox_error():
            return await self._parts.workspaces.base_file(await self._base(), path)

    # --- for the delivery

    async def diff(self) -> Patch:
        """The work tree's difference to the base. WorkspaceError, SandboxError, StoreError."""
        if self._box_task is None and await self._latest_snapshot() is None:
            return Patch(b"", 0, 0, 0)
        box = await self._box()
        await self._settle_snapshot()
        base = await self._base()
        return await compute_diff(box, base.commit, policy=self._policy)

    async def base_commit(self) -> str | None:
        """The commit that the thread works on; None without a repository. WorkspaceError, StoreError."""
        return None if isinstance(self._spec.repository, NoSource) else (await self._base()).commit

    async def keep(self, patch: Patch) -> None:
        """Remember a patch as the state of the thread's work tree. StoreError."""
        if patch.data == (self._kept or b""):
            return
        self._snapshots_taken += 1
        await self._parts.snapshots.put(
            self._owner.tenant_id,
            self._owner.thread_id,
            fence=self._owner.fence,
            number=self._snapshots_taken,
            data=patch.data,
        )
        self._kept = patch.data

    @asynccontextmanager
    async def fresh(self) -> AsyncIterator[Sandbox]:
        """A new box at the base, from the same set-up image, without network; gone afterwards."""
        workspaces = self._parts.workspaces
        base = await self._base()
        workspace = await workspaces.checkout(base, thread_id=self._owner.thread_id)
        try:
            image = await self._parts.setups.image(
                self._owner, self._spec.setup, base, channel=self._channel, telemetry=self._telemetry, segment=0
            )
            began = time.monotonic()
            box = await self._parts.engine.start(self._box_spec(workspace, image, DangerFullAccess(), kind="verify"))
            self._parts.metrics.add(Metric.SANDBOX_START, time.monotonic() - began, {"kind": "verify"})
            try:
                yield box
            finally:
                await box.close()
        finally:
            workspaces.release(workspace)

    # --- the end

    async def close(self, *, leave: bool) -> None:
        """Give box and work tree back; the engine removes the container on its own time.

        `leave`: the turn goes on elsewhere, so a snapshot is stored and the work tree is left for a worker of this machine.
        """
        for task in (self._box_task, self._base_task):
            if task is not None and not task.done():
                task.cancel()
        pending: list[asyncio.Task[Any]] = [task for task in (self._box_task, self._base_task) if task is not None]
        await asyncio.gather(*pending, return_exceptions=True)
        box = _result(self._box_task)
        if leave and box is not None and self._dirty:
            await self._snapshot(box)
        await self._settle_snapshot()
        if box is not None:
            await box.close()
        workspace, self._workspace = self._workspace, None
        if workspace is None:
            return
        if leave and box is not None:
            self._parts.workspaces.leave(workspace, thread_id=self._owner.thread_id)
        else:
            self._parts.workspaces.release(workspace)

    # --- making

    async def _box(self) -> Box:
        self.prepare()
        return await asyncio.shield(self._begun())

    def _begun(self) -> "asyncio.Task[Box]":
        if self._box_task is None:
            self._box_task = _start(self._make(), "box")
        return self._box_task

    async def _base(self) -> PreparedBase:
        if self._base_task is None:
            work = self._parts.workspaces.prepare(self._owner.tenant_id, self._spec.repository, self._spec.base)
            self._base_task = _start(work, "base")
        return await asyncio.shield(self._base_task)

    async def _make(self) -> Box:
        began = time.monotonic()
        with _as_sandbox_error():
            with self._telemetry.span(WORKSPACE, key=f"workspace/{self._segment}"):
                base = await self._base()
                workspace, adopted = await self._open_workspace(base)
            image = await self._parts.setups.image(
                self._owner, self._spec.setup, base, channel=self._channel, telemetry=self._telemetry, segment=self._segment
            )
            spec = self._box_spec(workspace, image, self._policy, kind="turn")
            with self._telemetry.span(SANDBOX, key=f"sandbox/{self._segment}", attributes={Attr.IMAGE: image}):
                started = time.monotonic()
                box = await self._parts.engine.start(spec)
                self._parts.metrics.add(Metric.SANDBOX_START, time.monotonic() - started, {"kind": "turn"})
            try:
                if not adopted and (snapshot := await self._latest_snapshot()):
                    await lay_patch(box, snapshot)
                await self._announce(base, image, box, int((time.monotonic() - began) * 1000))
            except BaseException:
                await box.close()
                raise
        return box

    async def _open_workspace(self, base: PreparedBase) -> "_Opened":
        """Check the base out, or go on with what the thread's former worker left."""
        workspaces = self._parts.workspaces
        adopted = await asyncio.to_thread(workspaces.adopt, base, thread_id=self._owner.thread_id)
        self._workspace = adopted or await workspaces.checkout(base, thread_id=self._owner.thread_id)
        self._dirty = adopted is not None
        return _Opened(self._workspace, self._dirty)

    async def _latest_snapshot(self) -> bytes | None:
        if self._kept is None:
            owner = self._owner
            self._kept = await patiently(lambda: self._parts.snapshots.latest(owner.tenant_id, owner.thread_id))
        return self._kept or None

    async def _announce(self, base: PreparedBase, image: str, box: Box, duration_ms: int) -> None:
        await self._channel.record(
            WorkspacePrepared(
                base_commit=None if isinstance(self._spec.repository, NoSource) else base.commit,
                image=image,
                confinement=asdict(box.confinement),
                duration_ms=duration_ms,
            )
        )

    def _box_spec(self, workspace: Workspace, image: str, policy: SandboxPolicy, *, kind: str) -> BoxSpec:
        settings = self._parts.settings
        return BoxSpec(
            image=image,
            labels=box_labels(self._owner, kind, settings.lease_ttl_s),
            policy=policy,
            mounts=tuple(BoxMount(m.source, m.target, read_only=m.read_only) for m in workspace.mounts),
            memory_mb=settings.sandbox_memory_mb,
            cpus=settings.sandbox_cpus,
            pids=settings.sandbox_pids,
            user=f"{workspace.owner_uid}:{workspace.owner_gid}",
        )

    # --- snapshots while the turn runs

    def _outputs_came(self) -> None:
        """Tools have run: the work tree may have changed."""
        self._dirty = True
        box = _result(self._box_task)
        if box is None or (self._snapshot_task is not None and not self._snapshot_task.done()):
            return
        if time.monotonic() >= self._next_snapshot:
            self._snapshot_task = _start(self._snapshot(box), "snapshot")

    async def _snapshot(self, box: Box) -> None:
        """Store the difference so far. Only helps whoever recovers the turn elsewhere, so a failure is noted and no more."""
        began = time.monotonic()
        self._dirty = False
        try:
            base = await self._base()
            await self.keep(await compute_diff(box, base.commit, policy=self._policy))
        except (WorkspaceError, SandboxError, StoreError) as error:
            self._dirty = True
            log.warning("no snapshot of the work tree: %s", error)
        took = time.monotonic() - began
        self._next_snapshot = time.monotonic() + max(SNAPSHOT_EVERY_S, SNAPSHOT_SHARE * took)

    async def _settle_snapshot(self) -> None:
        if self._snapshot_task is not None:
            await asyncio.gather(self._snapshot_task, return_exceptions=True)


def _start(work: Coroutine[Any, Any, T], name: str) -> "asyncio.Task[T]":
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_seen)
    return task


def _seen(task: "asyncio.Task[Any]") -> None:
    """Nobody may ever wait for it: its failure must not be reported as forgotten."""
    if not task.cancelled():
        task.exception()


def _result(task: "asyncio.Task[T] | None") -> T | None:
    if task is None or not task.done() or task.cancelled() or task.exception() is not None:
        return None
    return task.result()


@contextlib.contextmanager
def _as_sandbox_error() -> Iterator[None]:
    """Whatever keeps a turn from its box is a SandboxError for the agent."""
    try:
        yield
    except (WorkspaceError, StoreError) as error:
        raise SandboxError(error.info) from error
