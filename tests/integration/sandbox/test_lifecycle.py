"""Boxes come and go: with their worker, by the reaper, and with clear words when they can't start."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from patchyard.adapters.sandbox import BoxLabels, BoxMount, DockerBoxes, SetupFailed, SetupSpec
from patchyard.agent.ports import SandboxError
from patchyard.protocol.errors import ErrorCode
from tests.conformance.sandbox_suite import read_until, refused, request, run, shell
from tests.waiting import WAIT_S

from .conftest import DOCKER_HOST, ROOT, WORKER, DockerBackend, engine_boxes

pytestmark = pytest.mark.engine

A_WORKER = """
import asyncio, json, sys
from pathlib import Path
from patchyard.adapters.sandbox import BoxLabels, BoxSpec, DockerBoxes
from patchyard.agent.ports import SandboxExecRequest
from patchyard.protocol.policies import DangerFullAccess

async def main():
    asked = json.loads(sys.argv[1])
    boxes = DockerBoxes(asked["host"], concurrency=1, installation=asked["labels"]["worker"])
    labels = BoxLabels(**asked["labels"])
    spec = BoxSpec(image=asked["image"], labels=labels, policy=DangerFullAccess(), silence_s=asked["silence_s"])
    box = await boxes.start(spec)
    argv = ("sh", "-c", "trap '' TERM HUP; setsid sleep 1003 & setsid sh -c 'sleep 1003 & sleep 1003' & echo up; wait")
    process = await box.spawn(SandboxExecRequest(argv=argv, cwd="/", env={}, policy=DangerFullAccess()))
    print((await process.read()).decode(), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


class Worker:
    """A real process that owns a box full of daemons."""

    def __init__(self, backend: DockerBackend, name: str, silence_s: int) -> None:
        labels = asdict(replace(backend.spec.labels, worker=f"{WORKER}-{name}"))
        asked = {"host": DOCKER_HOST, "image": backend.spec.image, "labels": labels, "silence_s": silence_s}
        self.label = f"patchyard.worker={WORKER}-{name}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", A_WORKER, json.dumps(asked)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "up\n"

    def containers(self) -> list[str]:
        return engine("ps", "-aq", "--no-trunc", "--filter", f"label={self.label}").split()

    def wait_until_gone(self, container: str) -> None:
        """Waits for the engine's own word; it does not know a container that is gone already."""

        async def gone() -> None:
            async with asyncio.timeout(WAIT_S):
                engine = engine_boxes()._engine
                waited = await engine.call("POST", f"/containers/{container}/wait", query={"condition": "removed"})
                assert waited.status in (200, 404)

        asyncio.run(gone())

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def engine(*arguments: str) -> str:
    command = ["docker", "-H", DOCKER_HOST, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=WAIT_S).stdout


def test_a_box_dies_with_its_worker_and_not_of_its_silence(backend: DockerBackend) -> None:
    worker = Worker(backend, "killed", silence_s=3600)
    try:
        [container] = worker.containers()
        worker.process.send_signal(signal.SIGKILL)
        worker.wait_until_gone(container)
        assert worker.containers() == []
    finally:
        worker.end()


def test_a_frozen_worker_loses_its_box(backend: DockerBackend) -> None:
    worker = Worker(backend, "frozen", silence_s=2)
    try:
        [container] = worker.containers()
        worker.process.send_signal(signal.SIGSTOP)
        worker.wait_until_gone(container)
    finally:
        worker.end()


def test_a_killed_container_is_a_lost_box(backend: DockerBackend) -> None:
    async def scenario() -> None:
        async with backend.open() as box:
            process = await box.spawn(request("sh", "-c", "echo up; sleep 1000"))
            await read_until(process, b"up")
            containers = engine("ps", "-q", "--filter", f"label=patchyard.worker={WORKER}").split()
            await asyncio.to_thread(engine, "kill", *containers)
            assert await refused(process.wait()) is ErrorCode.SANDBOX_LOST
            assert await refused(box.spawn(request("true"))) is ErrorCode.SANDBOX_LOST
            assert await refused(box.read_file("/workspace/x", policy=backend.spec.policy, limit=1)) is ErrorCode.SANDBOX_LOST

    asyncio.run(scenario())


def test_what_keeps_a_box_from_starting_is_said(backend: DockerBackend, tmp_path: Path) -> None:
    async def code_of(**changes: object) -> ErrorCode:
        with pytest.raises(SandboxError) as caught:
            async with backend.open(**changes):
                pass
        assert str(tmp_path) not in caught.value.info.message
        return caught.value.info.code

    async def scenario() -> None:
        assert await code_of(image="sha256:" + "0" * 64) is ErrorCode.IMAGE_MISSING
        assert await code_of(mounts=(BoxMount(tmp_path / "absent", "/workspace"),)) is ErrorCode.SANDBOX_REFUSED
        assert await code_of(mounts=(BoxMount(tmp_path / "absent", "/other"),)) is ErrorCode.SANDBOX_REFUSED
        nobody = DockerBoxes(f"unix://{tmp_path}/no.sock", concurrency=1)
        assert await refused(nobody.start(backend.spec)) is ErrorCode.ENGINE_UNAVAILABLE
        info = await nobody.info()
        assert (info.reachable, bool(info.findings[0].remedy)) == (False, True)

    asyncio.run(scenario())


def test_info_knows_the_engine(backend: DockerBackend) -> None:
    async def scenario() -> None:
        boxes = engine_boxes()
        info = await boxes.info()
        assert info.reachable
        assert info.version
        assert info.cgroup_version in ("1", "2")
        assert await boxes.image_exists(backend.spec.image)
        assert not await boxes.image_exists("sha256:" + "0" * 64)

    asyncio.run(scenario())


def test_the_reaper_removes_what_nobody_owns(backend: DockerBackend) -> None:
    async def scenario() -> None:
        labels = replace(backend.spec.labels, worker=f"{WORKER}-dead", thread="orphan", lease_until_ms=17)
        flags = [flag for name, value in labels.as_labels().items() for flag in ("--label", f"{name}={value}")]
        ours, theirs = "patchyard.installation=" + WORKER, "patchyard.installation=another"
        orphan = (await asyncio.to_thread(engine, "create", *flags, "--label", ours, backend.spec.image)).strip()
        foreign = (await asyncio.to_thread(engine, "create", *flags, "--label", theirs, backend.spec.image)).strip()
        seen: list[BoxLabels] = []

        async def is_alive(owner: BoxLabels) -> bool:
            seen.append(owner)
            return owner.worker != f"{WORKER}-dead"

        async with backend.open() as box:
            boxes = engine_boxes()
            assert await boxes.reap(is_alive) == (orphan,)
            assert labels in seen
            assert backend.spec.labels in seen
            assert await boxes.reap(is_alive) == ()
            assert (await run(box, "true")).status.code == 0
        assert foreign in await asyncio.to_thread(engine, "rm", foreign)

    asyncio.run(scenario())


def test_a_cancelled_start_leaves_nothing(backend: DockerBackend) -> None:
    async def scenario() -> None:
        boxes = engine_boxes(concurrency=4)
        starts = [asyncio.create_task(boxes.start(backend.spec)) for _ in range(4)]
        await asyncio.wait(starts, return_when=asyncio.FIRST_COMPLETED)
        for start in starts:
            start.cancel()
        await asyncio.gather(*starts, return_exceptions=True)
        await boxes.close()
        assert engine("ps", "-aq", "--filter", f"label=patchyard.worker={WORKER}") == ""

    asyncio.run(scenario())


def setup_spec(backend: DockerBackend, command: str, **more: object) -> SetupSpec:
    labels = replace(backend.spec.labels, kind="setup")
    return SetupSpec(image=backend.spec.image, command=command, labels=labels, network="none", **more)  # type: ignore[arg-type]


def test_a_set_up_makes_an_image_without_its_secrets(backend: DockerBackend, tmp_path: Path) -> None:
    (backend.workspace / "input").write_text("from the workspace\n")
    bundle = tmp_path / "ca.pem"
    bundle.write_text("a certificate\n")
    command = (
        'cat input; cat "$PIP_CERT"; echo built > local; cp input /opt/venv/made; echo "$INDEX_TOKEN" > /tmp/leak; sleep 1000 &'
    )
    spec = setup_spec(
        backend,
        command,
        workspace=backend.workspace,
        ca_file=bundle,
        env={"INDEX_TOKEN": "s3cret"},
        cache_key="test-of-set-up",
    )

    async def scenario() -> None:
        boxes = engine_boxes()
        output: list[bytes] = []
        derived = await boxes.run_setup(spec, on_output=output.append)
        try:
            assert b"".join(output) == b"from the workspace\na certificate\n"
            assert await boxes.run_setup(spec, on_output=output.append) == derived
            assert len(b"".join(output)) == len(b"from the workspace\na certificate\n")
            async with backend.open(image=derived) as box:
                look = "cat /opt/venv/made; ls local /tmp 2>&1; env; cat /proc/1/environ 2>/dev/null; pytest --version"
                seen = (await shell(box, look)).output
                assert seen.startswith(b"from the workspace\n")
                assert b"pytest 8" in seen
                for secret in (b"s3cret", b"INDEX_TOKEN", b"PIP_CERT", b"built"):
                    assert secret not in seen
            inspected = await asyncio.to_thread(engine, "image", "inspect", derived)
            history = await asyncio.to_thread(engine, "history", "--no-trunc", derived)
            assert not any(word in inspected + history for word in ("s3cret", "PIP_CERT"))
        finally:
            await boxes.close()
            assert await boxes.remove_image(derived)
        assert not (backend.workspace / "local").exists()

    asyncio.run(scenario())


def test_a_set_up_that_fails_shows_the_end_of_its_output(backend: DockerBackend) -> None:
    async def scenario() -> None:
        boxes = engine_boxes()
        with pytest.raises(SetupFailed, match=r"exit code 9(.|\n)*no such package"):
            await boxes.run_setup(setup_spec(backend, "echo no such package; exit 9"), on_output=lambda _: None)
        with pytest.raises(SetupFailed, match="took longer"):
            await boxes.run_setup(setup_spec(backend, "sleep 1000", timeout_s=0.5), on_output=lambda _: None)
        await boxes.close()

    asyncio.run(scenario())


@pytest.mark.registry
@pytest.mark.timeout(300)
def test_a_set_up_installs_from_a_package_index(backend: DockerBackend) -> None:
    bundle = os.environ.get("SSL_CERT_FILE")
    spec = replace(
        setup_spec(backend, "pip install -q iniconfig==2.0.0", ca_file=Path(bundle) if bundle else None), network="host"
    )

    async def scenario() -> None:
        boxes = engine_boxes()
        output: list[bytes] = []
        derived = await boxes.run_setup(spec, on_output=output.append)
        try:
            async with backend.open(image=derived) as box:
                assert b"2.0.0" in (await shell(box, "pip show iniconfig")).output
        finally:
            await boxes.close()
            assert await boxes.remove_image(derived)

    asyncio.run(scenario())
