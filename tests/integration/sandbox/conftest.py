"""A Docker engine, the built image, and boxes whose labels name this test run."""

import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from patchyard.adapters.sandbox import Box, BoxLabels, BoxMount, BoxSpec, DockerBoxes
from patchyard.protocol.policies import WorkspaceWrite

ROOT = Path(__file__).resolve().parents[3]
DOCKER_HOST = os.environ.get("PATCHYARD_DOCKER_HOST", "unix:///var/run/docker.sock")
WORKER = f"pytest-{uuid.uuid4()}"


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Id of the base image, built if it is not there yet."""
    home = tmp_path_factory.mktemp("home")
    command = [sys.executable, ROOT / "sandbox_images" / "build.py", "--home", home, "--docker-host", DOCKER_HOST]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=600).stdout.strip()


def engine_boxes(concurrency: int = 1) -> DockerBoxes:
    """Boxes of this test run's own installation: no other reaper on the engine takes them."""
    return DockerBoxes(DOCKER_HOST, concurrency=concurrency, installation=WORKER)


@dataclass
class DockerBackend:
    """The Backend of the conformance suite: a container per sandbox."""

    spec: BoxSpec
    workspace: Path

    @asynccontextmanager
    async def open(self, **changes: object) -> AsyncIterator[Box]:
        boxes = engine_boxes(concurrency=2)
        try:
            yield await boxes.start(replace(self.spec, **changes))  # type: ignore[arg-type]
        finally:
            await boxes.close()


@pytest.fixture
def backend(image: str, tmp_path: Path) -> DockerBackend:
    """Boxes of 256 MB over an empty workspace."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    if os.getuid() == 0:
        os.chown(workspace, 1000, 1000)
    spec = BoxSpec(
        image=image,
        labels=BoxLabels(tenant="default", thread="thread", turn="turn", worker=WORKER),
        policy=WorkspaceWrite(),
        mounts=(BoxMount(workspace, "/workspace"),),
        memory_mb=256,
        tmpfs_mb={"/tmp": 64},
        user="1000:1000" if os.getuid() == 0 else f"{os.getuid()}:{os.getgid()}",
    )
    return DockerBackend(spec, workspace)
