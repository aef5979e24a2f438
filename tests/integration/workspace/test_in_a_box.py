"""A checkout as a real box sees it: what git can do there, what is protected, and the patch that comes out."""

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from patchyard.adapters.sandbox import Box, BoxLabels, BoxMount, BoxSpec, DockerBoxes
from patchyard.adapters.workspace import (
    BOX_PATH,
    Workspace,
    WorkspaceManager,
    compute_diff,
    lay_overlay,
    lay_patch,
    run_in_box,
)
from patchyard.protocol.ids import new_id
from patchyard.protocol.policies import DangerFullAccess, SandboxPolicy, WorkspaceWrite
from patchyard.protocol.tasks import GitSource
from tests.e2e.service import image
from tests.unit.workspace.conftest import git, repository  # noqa: F401 - a fixture
from tests.unit.workspace.test_checkout import _tar

pytestmark = pytest.mark.engine

INSTALLATION = f"test-{os.getpid()}"


class Kit:
    def __init__(self, manager: WorkspaceManager, engine: DockerBoxes, source: GitSource, image: str) -> None:
        self.manager, self.engine, self.source, self.image = manager, engine, source, image

    async def checkout(self) -> Workspace:
        return await self.manager.checkout(await self.manager.prepare("default", self.source, None), thread_id=new_id())

    async def box(self, workspace: Workspace, policy: SandboxPolicy) -> Box:
        labels = BoxLabels(tenant="default", thread=new_id(), turn=new_id(), worker="test")
        mounts = tuple(BoxMount(m.source, m.target, read_only=m.read_only) for m in workspace.mounts)
        user = f"{workspace.owner_uid}:{workspace.owner_gid}"
        return await self.engine.start(BoxSpec(image=self.image, labels=labels, policy=policy, mounts=mounts, user=user))


def run(tmp_path: Path, folder: Path, body: Callable[[Kit], Awaitable[None]]) -> None:
    async def never(tenant_id: str, artefact_id: str, target: Path) -> None:
        raise AssertionError("no artefact is needed")

    async def main() -> None:
        manager = WorkspaceManager(tmp_path / "root", worker_id="w", fetch_artefact=never, allow_local=True)
        manager.open()
        engine = DockerBoxes("unix:///var/run/docker.sock", concurrency=2, installation=INSTALLATION)
        try:
            await body(Kit(manager, engine, GitSource(url=str(folder)), image()))
        finally:
            await engine.close()
            await manager.close()

    asyncio.run(main())


async def shell(box: Box, script: str, policy: SandboxPolicy) -> tuple[int, str]:
    env = {"PATH": BOX_PATH, "HOME": "/tmp"}
    result = await run_in_box(box, ("/bin/sh", "-c", script), env=env, policy=policy, timeout_s=60)
    return result.status.code, result.output.decode()


def test_git_works_and_its_folder_cannot_be_changed(tmp_path: Path, repository: Path) -> None:  # noqa: F811
    async def body(kit: Kit) -> None:
        policy = WorkspaceWrite()
        workspace = await kit.checkout()
        box = await kit.box(workspace, policy)
        code, out = await shell(box, "git status --short --branch && git log --oneline && git describe --tags", policy)
        assert (code, out.splitlines()[0], out.splitlines()[-1]) == (0, "## main", "v1.0"), out
        code, out = await shell(box, "echo x >> app.py && git diff --stat && git blame app.py | head -1", policy)
        assert code == 0, out
        assert "app.py" in out
        for attempt in (
            "git commit -qam x",
            "git config core.fsmonitor 'touch /tmp/owned'",
            "echo gitdir: /tmp/evil > .git",
            "mv .git .git2",
            "rm -f .git",
            "touch /gitdir/hooks",
            "touch /mirror/objects/x",
            "mkdir .codex/x",
            "mkdir .agents/x",
            "rm -rf /workspace",
        ):
            code, out = await shell(box, attempt, policy)
            assert code != 0, attempt
        assert (workspace.tree / ".git").read_text() == "gitdir: /gitdir\n"

    run(tmp_path, repository, body)


def test_the_patch_of_a_box_gives_the_same_tree_in_a_fresh_one(tmp_path: Path, repository: Path) -> None:  # noqa: F811
    changes = r"""
set -e
sed -i 's/a - b/a + b/' app.py
printf 'no newline' > 'new file.txt'
head -c 3000 /dev/urandom > blob.bin
rm pkg/AGENTS.md
chmod -x run.sh
ln -s app.py link
printf '* filter=evil diff=evil text eol=crlf\n' > .gitattributes
printf 'one\r\nzwei\r\n' > dos.txt
touch ignored.pyc; echo secret > unreadable; mkdir shut; echo x > shut/f; chmod 000 unreadable shut
git init -q nested && cd nested && touch f
"""

    async def body(kit: Kit) -> None:
        policy = WorkspaceWrite()
        worked, fresh = await kit.checkout(), await kit.checkout()
        box = await kit.box(worked, policy)
        code, out = await shell(box, changes, policy)
        assert code == 0, out
        patch = await compute_diff(box, worked.base_commit)
        assert patch.files == 10
        _, tree = await shell(box, LISTING, policy)
        other = await kit.box(fresh, DangerFullAccess())
        await lay_patch(other, patch.data)
        _, laid = await shell(other, LISTING, DangerFullAccess())
        assert laid == tree
        archive = _tar(tmp_path / "o.tgz", ("tests/test_x.py", b"hidden\n")).read_bytes()
        await lay_overlay(other, archive)
        assert await shell(other, "cat tests/test_x.py", DangerFullAccess()) == (0, "hidden\n")
        _, scratch = await shell(box, "ls -A /tmp", policy)
        assert ".patchyard" not in scratch

    run(tmp_path, repository, body)


LISTING = (
    "find . -path ./nested -prune -o \\( -type f -o -type l \\) ! -name '*.pyc' -print0 | sort -z |"
    ' xargs -0 sh -c \'for f; do printf "%s %s " "$f" "$(test -x "$f"; echo $?)";'
    ' if [ -L "$f" ]; then readlink "$f"; else sha256sum < "$f"; fi; done\' sh'
)


def test_no_container_is_left() -> None:
    done = subprocess.run(
        ["docker", "ps", "-aq", "--filter", f"label=patchyard.installation={INSTALLATION}"], capture_output=True, check=True
    )
    assert done.stdout == b""
