"""The set-up phase: its result is an image that the agent's and the verification's boxes share, made once per base."""

import asyncio
import hashlib
import json
import logging
import time
from pathlib import Path
from weakref import WeakValueDictionary

from observability import Attr, ThreadTelemetry
from observability.names import SETUP
from patchyard.adapters.sandbox import BoxMount, DockerBoxes, ImageMissing
from patchyard.adapters.sandbox import SetupSpec as SetupJob
from patchyard.adapters.workspace import PreparedBase, WorkspaceManager
from patchyard.agent.ports import SandboxError
from patchyard.protocol.events import SetupCompleted, SetupOutputDelta, SetupStarted
from patchyard.protocol.tasks import SetupSpec
from patchyard.settings import Settings

from .channel import WorkerChannel
from .owners import Owner, box_labels
from .verification import OutputKeeper, plain, tail

log = logging.getLogger(__name__)

LOCK_FILE = "images.lock.json"


class SetupImages:
    """Finds or makes the image of a task's boxes."""

    def __init__(self, settings: Settings, engine: DockerBoxes, workspaces: WorkspaceManager) -> None:
        self._settings = settings
        self._engine = engine
        self._workspaces = workspaces
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def image(
        self,
        owner: Owner,
        setup: SetupSpec | None,
        base: PreparedBase,
        *,
        channel: WorkerChannel,
        telemetry: ThreadTelemetry,
        segment: int,
    ) -> str:
        """The image id. SandboxError: no image, or a set-up that failed; its output is in the events.

        `segment` 0: somebody who asks again, and is not told that the image was found.
        """
        plain_image = base_image(self._settings)
        if setup is None:
            return plain_image
        key = cache_key(owner.tenant_id, plain_image, setup.command, base.commit)
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:  # tasks of one campaign want the same image at the same time
            known = await self._engine.find_setup_image(key)
            if known is not None:
                if segment:
                    await channel.record(
                        SetupStarted(command=setup.command, cached=True),
                        SetupCompleted(exit_code=0, image=known, output_tail="", duration_ms=0),
                    )
                return known
            with telemetry.span(SETUP, key=f"setup/{segment}", attributes={Attr.CACHED: False}) as span:
                image = await self._run(owner, setup, base, key, plain_image, channel)
                span.set(**{Attr.IMAGE.value: image})
                return image

    async def _run(
        self, owner: Owner, setup: SetupSpec, base: PreparedBase, key: str, image: str, channel: WorkerChannel
    ) -> str:
        await channel.record(SetupStarted(command=setup.command, cached=False))
        keeper = OutputKeeper()
        began = time.monotonic()

        def took() -> int:
            return int((time.monotonic() - began) * 1000)

        def show(chunk: bytes) -> None:
            keeper.add(chunk)
            channel.show(SetupOutputDelta(phase="setup", delta=chunk.decode("utf-8", "replace")))

        workspace = await self._workspaces.checkout(base, thread_id=owner.thread_id)
        try:
            job = SetupJob(
                image=image,
                command=setup.command,
                labels=box_labels(owner, "setup", self._settings.lease_ttl_s),
                cache_key=key,
                workspace=workspace.tree,
                mounts=tuple(BoxMount(m.source, m.target, read_only=True) for m in workspace.git_mounts),
                network=self._settings.setup_network,
                ca_file=self._settings.setup_ca_file,
                timeout_s=setup.timeout_s,
                memory_mb=self._settings.sandbox_memory_mb,
                cpus=self._settings.sandbox_cpus,
                pids=self._settings.sandbox_pids,
            )
            made = await self._engine.run_setup(job, on_output=show)
        except SandboxError as error:
            output = tail(plain(keeper.data())) or error.info.message
            await channel.record(SetupCompleted(exit_code=None, image=None, output_tail=output, duration_ms=took()))
            raise
        finally:
            self._workspaces.release(workspace)
        await channel.record(
            SetupCompleted(exit_code=0, image=made, output_tail=tail(plain(keeper.data())), duration_ms=took())
        )
        return made


def base_image(settings: Settings) -> str:
    """The image that boxes start from: the setting, else what the image build recorded. ImageMissing."""
    if settings.sandbox_image is not None:
        return settings.sandbox_image
    return recorded_image(settings.home) or _missing()


def recorded_image(home: Path) -> str | None:
    """Id of the image that `sandbox_images/build.py` recorded; None: it was not built, or the record can't be read."""
    try:
        found = json.loads((home / LOCK_FILE).read_bytes())["base"]["id"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) and found else None


def cache_key(tenant_id: str, image: str, command: str, commit: str) -> str:
    """Name of a set-up's result. Never shared between tenants."""
    return hashlib.sha256(json.dumps([tenant_id, image, command, commit]).encode()).hexdigest()[:40]


def _missing() -> str:
    raise ImageMissing("of the sandbox")
