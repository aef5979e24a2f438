"""Boxes as containers of a Docker engine."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from ._box import Box
from ._engine import EngineClient
from ._setup import SetupSpec, run_in_box, setup_box
from ._spec import INSTALLATION_LABEL, BoxLabels, BoxSpec, plan
from .errors import BoxLost, BoxRefused, EngineUnavailable, ImageMissing

_log = logging.getLogger(__name__)
_REMOVAL_PATIENCE_S = 10
"""How long an ended box may take to remove itself before it is removed by force."""
_SLOW_REMOVAL_S = 60
"""How long a removal by force may take; then it is left to the engine, and to the reaper."""
_SETUP_LABEL = "patchyard.setup"
_FIXED_RUNC = (1, 2, 8)
"""First runc with the fixes for CVE-2024-21626, CVE-2025-31133, CVE-2025-52565 and CVE-2025-52881."""


@dataclass(frozen=True)
class Finding:
    """Something about the engine that should be otherwise."""

    problem: str
    remedy: str


@dataclass(frozen=True)
class EngineInfo:
    """What `doctor` shows of an engine."""

    reachable: bool
    version: str = ""
    runc_version: str = ""
    cgroup_version: str = ""
    architecture: str = ""
    findings: tuple[Finding, ...] = ()


class DockerBoxes:
    """Starts and ends boxes; one per worker process. `close` waits until everything it started is gone."""

    def __init__(self, docker_host: str, *, concurrency: int, installation: str = "default") -> None:
        """`docker_host`: unix:///path or tcp://host:port; ValueError otherwise. `concurrency`: engine jobs at once.

        `installation` names whose boxes `reap` may remove: several installations can share one engine.
        """
        self._engine = EngineClient(docker_host)
        self._installation = installation
        self._jobs = asyncio.Semaphore(concurrency)
        self._running: dict[str, Box] = {}
        self._removals: set[asyncio.Task[None]] = set()

    # --- boxes --------------------------------------------------------------------------------------------------------

    async def start(self, spec: BoxSpec) -> Box:
        """A running, checked box. ImageMissing, BoxRefused, DiskFull, EngineUnavailable, BoxLost: nothing is left behind."""
        planned = await asyncio.to_thread(plan, spec)
        async with self._jobs:
            labels = {**planned.config["Labels"], INSTALLATION_LABEL: self._installation}
            container = await self._create({**planned.config, "Labels": labels}, spec)
            try:
                box = await self._attach_and_start(container, spec)
            except BaseException:
                self._remove_later(container)
                raise
        self._running[container] = box
        box.unprotected = planned.unprotected
        box.when_ended(lambda: self._on_box_ended(container))
        if missing := box.confinement.missing(user=spec.user, network=spec.network, read_only_root=spec.read_only_root):
            await box.close()
            raise BoxRefused(f"The sandbox is refused, because {' and '.join(missing)}. See the engine's configuration.")
        return box

    async def close(self) -> None:
        """End all boxes and wait until the engine has removed them."""
        for box in list(self._running.values()):
            await box.close()
        while self._removals:
            await asyncio.gather(*self._removals, return_exceptions=True)

    async def settled(self) -> None:
        """Wait until the boxes that have ended are removed."""
        while self._removals:
            await asyncio.gather(*self._removals, return_exceptions=True)

    async def _create(self, config: Mapping[str, object], spec: BoxSpec) -> str:
        response = await self._engine.call("POST", "/containers/create", body=config)
        if response.status == 201:
            return str(response.body["Id"])
        if response.status == 404 and "image" in response.message.lower():
            raise ImageMissing(spec.image)
        _log.warning("the engine refused to create a box: %s", response.message)
        if "bind source path" in response.message:
            raise BoxRefused("A folder that the sandbox needs does not exist on the engine's machine.")
        raise EngineUnavailable(
            f"The Docker engine refused to create the sandbox (status {response.status}); see the worker's log."
        )

    async def _attach_and_start(self, container: str, spec: BoxSpec) -> Box:
        # Attached before the start, so that the box never runs without the stream whose end is its end.
        query: dict[str, str | int] = {"stream": 1, "stdin": 1, "stdout": 1, "stderr": 1}
        stream = await self._engine.hijack(f"/containers/{container}/attach", query=query)
        try:
            response = await self._engine.call("POST", f"/containers/{container}/start")
            if response.status >= 400:
                _log.warning("the engine could not start a box: %s", response.message)
                if "boxd" in response.message:
                    raise BoxRefused("The image has no boxd: build it with `python sandbox_images/build.py`.")
                raise EngineUnavailable(
                    f"The Docker engine could not start the sandbox (status {response.status}); see the worker's log."
                )
        except BaseException:
            stream.writer.close()
            raise
        return await Box.open(stream.reader, stream.writer, policy=spec.policy, silence_s=spec.silence_s)

    def _on_box_ended(self, container: str) -> None:
        self._running.pop(container, None)
        self._remove_later(container)

    def _remove_later(self, container: str) -> None:
        task = asyncio.create_task(self._remove(container), name="box-remove")
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)

    async def _remove(self, container: str) -> None:
        """A box that ran removes itself when its stream closes; one that does not, or never ran, is removed by force."""
        try:
            state = await self._engine.call("GET", f"/containers/{container}/json")
            if state.status == 404:
                return
            if state.body["State"]["Status"] != "created" and await self._removed(container, timeout_s=_REMOVAL_PATIENCE_S):
                return
        except EngineUnavailable:
            pass
        try:
            async with self._jobs:
                answer = await self._engine.call("DELETE", f"/containers/{container}", query={"force": 1, "v": 1})
            if answer.status == 409:  # the engine is at it already, and slow
                await self._removed(container, timeout_s=_SLOW_REMOVAL_S)
        except EngineUnavailable:
            _log.warning("box %s is left to the reaper: the engine does not answer", container[:12])

    async def _removed(self, container: str, *, timeout_s: float) -> bool:
        """Wait until the engine says that it is gone. EngineUnavailable: not in this time."""
        path = f"/containers/{container}/wait"
        waited = await self._engine.call("POST", path, query={"condition": "removed"}, timeout_s=timeout_s)
        return waited.status in (200, 404)

    # --- set-up -----------------------------------------------------------------------------------------------------------

    async def run_setup(self, spec: SetupSpec, *, on_output: Callable[[bytes], None]) -> str:
        """Run a set-up command once and keep its result: the id of the derived image. SetupFailed, and what `start` raises.

        An image of the same `cache_key` is used again without running anything.
        """
        if spec.cache_key and (known := await self.find_setup_image(spec.cache_key)):
            return known
        box = await self.start(setup_box(spec))
        try:
            container = next(ident for ident, running in self._running.items() if running is box)
            await run_in_box(box, spec, on_output=on_output)
            return await self._commit(container, spec)
        finally:
            await box.close()

    async def _commit(self, container: str, spec: SetupSpec) -> str:
        """The container's root file system as an image. What was mounted, and the command's environment, are not part of it."""
        whose = BoxLabels(tenant=spec.labels.tenant, thread="", turn="", worker="", kind="setup-image")
        # The empty ones are named because an engine merges the container's own labels in otherwise.
        labels = {**whose.as_labels(), INSTALLATION_LABEL: "", _SETUP_LABEL: spec.cache_key}
        config = {"Labels": labels, "Cmd": [], "WorkingDir": "/workspace"}
        async with self._jobs:
            response = await self._engine.call("POST", "/commit", query={"container": container}, body=config, timeout_s=300)
        if response.status != 201:
            _log.warning("the engine could not commit a set-up: %s", response.message)
            raise BoxLost("The set-up ran, but the engine could not keep its result; see the worker's log.")
        return str(response.body["Id"])

    async def find_setup_image(self, cache_key: str) -> str | None:
        """The newest image that a set-up of this key left."""
        filters = json.dumps({"label": [f"{_SETUP_LABEL}={cache_key}"]})
        response = await self._engine.call("GET", "/images/json", query={"filters": filters})
        images = response.body if response.status == 200 else []
        newest = max(images, key=lambda image: int(image["Created"]), default=None)
        return str(newest["Id"]) if newest else None

    async def image_exists(self, image: str) -> bool:
        """Whether the engine has the image."""
        return (await self._engine.call("GET", f"/images/{image}/json")).status == 200

    async def remove_image(self, image: str) -> bool:
        """Remove a set-up image; False when a container still uses it or it is not there."""
        return (await self._engine.call("DELETE", f"/images/{image}")).status == 200

    # --- upkeep -----------------------------------------------------------------------------------------------------------

    async def reap(self, is_alive: Callable[[BoxLabels], Awaitable[bool]]) -> tuple[str, ...]:
        """Remove boxes of this installation whose owner `is_alive` denies; ids of the removed. Own running boxes stay."""
        filters = json.dumps({"label": [f"{INSTALLATION_LABEL}={self._installation}"]})
        response = await self._engine.call("GET", "/containers/json", query={"all": 1, "filters": filters})
        removed = []
        for container in response.body if response.status == 200 else []:
            labels = BoxLabels.from_labels(container["Labels"])
            if labels is None or container["Id"] in self._running or await is_alive(labels):
                continue
            async with self._jobs:
                answer = await self._engine.call("DELETE", f"/containers/{container['Id']}", query={"force": 1, "v": 1})
            if answer.status in (204, 404):
                removed.append(str(container["Id"]))
        return tuple(removed)

    async def info(self) -> EngineInfo:
        """The engine's versions and what should be changed; never raises."""
        try:
            version = (await self._engine.call("GET", "/version", timeout_s=10)).body
            details = (await self._engine.call("GET", "/info", timeout_s=10)).body
        except EngineUnavailable as error:
            return EngineInfo(reachable=False, findings=(Finding("no Docker engine answers", error.info.message),))
        components = {part["Name"]: part["Version"] for part in version.get("Components") or ()}
        runc = str(components.get("runc", ""))
        findings = []
        if runc and _version(runc) < _FIXED_RUNC:
            findings.append(Finding(f"runc {runc} has known ways out of a container", "upgrade runc to 1.2.8 or later"))
        if not any("seccomp" in option for option in details.get("SecurityOptions") or ()):
            findings.append(
                Finding("the engine has no seccomp", "use a kernel and an engine with seccomp: boxes are refused without it")
            )
        for limit, what in (("MemoryLimit", "memory"), ("PidsLimit", "processes")):
            if not details.get(limit, True):
                findings.append(
                    Finding(f"the engine can't limit the {what} of a box", "delegate its cgroups to the engine (cgroup v2)")
                )
        return EngineInfo(
            reachable=True,
            version=str(version.get("Version", "")),
            runc_version=runc,
            cgroup_version=str(details.get("CgroupVersion", "1")),
            architecture=str(details.get("Architecture", "")),
            findings=tuple(findings),
        )


def _version(text: str) -> tuple[int, ...]:
    """The leading numbers of a version such as 1.1.5+ds1."""
    numbers = []
    for part in text.split("+")[0].split("-")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
