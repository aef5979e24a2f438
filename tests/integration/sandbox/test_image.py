"""The image of the boxes, and the script that builds it."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.sandbox_suite import shell
from tests.waiting import WAIT_S

from .conftest import DOCKER_HOST, ROOT, DockerBackend

pytestmark = pytest.mark.engine


def test_a_second_build_finds_the_first_and_keeps_other_entries_of_the_lock(image: str, tmp_path: Path) -> None:
    lock = tmp_path / "images.lock.json"
    lock.write_text('{"other": {"id": "sha256:1"}}')
    command = [sys.executable, ROOT / "sandbox_images/build.py", "--home", tmp_path, "--docker-host", DOCKER_HOST]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=WAIT_S)
    assert (done.stdout.strip(), "up to date" in done.stderr) == (image, True)
    written = json.loads(lock.read_text())
    assert (written["base"]["id"], written["other"]) == (image, {"id": "sha256:1"})


def test_no_engine_is_one_clear_message(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "sandbox_images/build.py", "--home", tmp_path, "--docker-host", f"unix://{tmp_path}/none"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 1
    assert "no Docker engine answers" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_image_has_the_tools_and_no_set_uid_program(backend: DockerBackend) -> None:
    async def scenario() -> None:
        async with backend.open() as box:
            versions = "python --version && pip --version && git --version && rg --version && pytest --version"
            ran = await shell(box, versions)
            assert ran.status.code == 0, ran.output.decode()
            assert (await shell(box, "command -v pytest; stat -c %u /opt/venv")).output == b"/opt/venv/bin/pytest\n1000\n"
            assert (await shell(box, "find / -xdev -perm /6000 2>/dev/null")).output == b""
            assert (await shell(box, "ls /run/pip 2>/dev/null; git config --system safe.directory")).output == b"*\n"

    asyncio.run(scenario())
