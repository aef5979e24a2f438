import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from patchyard.adapters.workspace import (
    Patch,
    PatchRefused,
    PatchTooLarge,
    Workspace,
    WorkspaceManager,
    compute_diff,
    lay_overlay,
    lay_patch,
)
from patchyard.protocol.tasks import GitSource

from .boxes import FolderBox
from .conftest import git

OpenManager = Callable[..., WorkspaceManager]


def _content(workspace: Workspace) -> dict[str, tuple[bytes, int]]:
    files: dict[str, tuple[bytes, int]] = {}
    for path in sorted(workspace.tree.rglob("*")):
        name = str(path.relative_to(workspace.tree))
        if path.is_symlink():
            files[name] = (os.readlink(path).encode(), 0)
        elif path.is_file() and name != ".git":
            files[name] = (path.read_bytes(), path.stat().st_mode & 0o111)
    return files


def _round_trip(repository: Path, open_manager: OpenManager, change: Callable[[Path], None]) -> Patch:
    """Change a checkout, take the patch, lay it over another checkout, and compare the trees byte for byte."""

    async def run() -> Patch:
        manager = open_manager()
        base = await manager.prepare("default", GitSource(url=str(repository)), None)
        work, fresh = await manager.checkout(base, thread_id="th"), await manager.checkout(base, thread_id="th")
        change(work.tree)
        before = sorted(work.git_dir.rglob("*"))
        patch = await compute_diff(FolderBox(work), base.commit)
        assert sorted(work.git_dir.rglob("*")) == before
        await lay_patch(FolderBox(fresh), patch.data)
        kept = {
            name: entry
            for name, entry in _content(work).items()
            if not name.endswith(".pyc") and "nested/" not in name and "pkg/it" not in name
        }
        assert _content(fresh) == kept
        return patch

    return asyncio.run(run())


def test_all_kinds_of_changes(repository: Path, open_manager: OpenManager) -> None:
    def change(tree: Path) -> None:
        (tree / "app.py").write_text("def add(a, b):\n    return a + b\n")
        (tree / "new file.txt").write_text("without a last newline")
        (tree / "blob.bin").write_bytes(bytes(reversed(range(256))))
        (tree / "dos.txt").write_bytes(b"one\r\nzwei\r\n")
        (tree / "pkg" / "AGENTS.md").unlink()
        (tree / "run.sh").chmod(0o644)
        (tree / "link").symlink_to("app.py")
        (tree / 'ümläut "quoted"\t.txt').write_text("x\n")
        (tree / "ignored.pyc").write_bytes(b"x")
        (tree / "empty").touch()

    patch = _round_trip(repository, open_manager, change)
    assert b"GIT binary patch" in patch.data
    assert b"ignored.pyc" not in patch.data
    assert (patch.files, patch.insertions, patch.deletions) == (9, 5, 3)


def test_nothing_changed(repository: Path, open_manager: OpenManager) -> None:
    assert _round_trip(repository, open_manager, lambda tree: (tree / "x.pyc").touch()).empty


def test_same_size_same_second(repository: Path, open_manager: OpenManager) -> None:
    patch = _round_trip(
        repository, open_manager, lambda tree: (tree / "app.py").write_text("def add(a, b):\n    return a + b\n")
    )
    assert patch.files == 1


def test_rename(repository: Path, open_manager: OpenManager) -> None:
    def change(tree: Path) -> None:
        (tree / "app.py").rename(tree / "lib.py")

    patch = _round_trip(repository, open_manager, change)
    assert b"rename to lib.py" in patch.data
    assert patch.files == 1


def test_hostile_attributes_and_configuration_do_nothing(repository: Path, open_manager: OpenManager, tmp_path: Path) -> None:
    proof = tmp_path / "proof"

    def change(tree: Path) -> None:
        (tree / ".gitattributes").write_text(
            "* filter=evil diff=evil text eol=crlf working-tree-encoding=UTF-16 ident merge=evil\n"
        )
        (tree / ".gitconfig").write_text(
            f'[filter "evil"]\n\tclean = touch {proof}\n[diff "evil"]\n\tcommand = touch {proof}\n'
        )
        (tree / ".gitmodules").write_text('[submodule "x"]\n\tpath = x\n\turl = ext::touch\n')
        (tree / "app.py").write_bytes(b"a = '$Id$'\r\nb\n")

    patch = _round_trip(repository, open_manager, change)
    assert patch.files == 4
    assert not proof.exists()


def test_repository_made_by_the_agent_is_left_out_and_told(repository: Path, open_manager: OpenManager) -> None:
    def change(tree: Path) -> None:
        for name in ("nested", "nested/without a commit", "pkg/it's"):
            nested = tree / name
            nested.mkdir(parents=True)
            git(nested, "init", "-q")
            (nested / "f").write_text("x")
            if "without" not in name:
                git(nested, "add", "f")
                git(nested, "commit", "-q", "-m", "x")
        (tree / "app.py").write_text("changed\n")

    patch = _round_trip(repository, open_manager, change)
    assert sorted(patch.left_out) == ["nested", "nested/without a commit", "pkg/it's"]
    assert patch.files == 1


def test_bound(repository: Path, open_manager: OpenManager) -> None:
    async def run() -> None:
        manager = open_manager()
        base = await manager.prepare("default", GitSource(url=str(repository)), None)
        work = await manager.checkout(base, thread_id="th")
        (work.tree / "big").write_bytes(os.urandom(200_000))
        with pytest.raises(PatchTooLarge, match=r"100,000 bytes.*gitignore"):
            await compute_diff(FolderBox(work), base.commit, max_bytes=100_000)

    asyncio.run(run())


def test_patch_that_does_not_apply(repository: Path, open_manager: OpenManager) -> None:
    async def run() -> None:
        manager = open_manager()
        base = await manager.prepare("default", GitSource(url=str(repository)), None)
        work, other = await manager.checkout(base, thread_id="th"), await manager.checkout(base, thread_id="th")
        (work.tree / "app.py").write_text("def add(a, b):\n    return a + b\n")
        patch = await compute_diff(FolderBox(work), base.commit)
        (other.tree / "app.py").write_text("something else\n")
        with pytest.raises(PatchRefused, match=r"app\.py"):
            await lay_patch(FolderBox(other), patch.data)

    asyncio.run(run())


def test_overlay(repository: Path, open_manager: OpenManager, tmp_path: Path) -> None:
    from .test_checkout import _tar

    async def run() -> None:
        manager = open_manager()
        base = await manager.prepare("default", GitSource(url=str(repository)), None)
        work = await manager.checkout(base, thread_id="th")
        archive = _tar(tmp_path / "o.tgz", ("tests/test_app.py", b"hidden\n"), ("app.py", b"replaced\n"))
        await lay_overlay(FolderBox(work), archive.read_bytes())
        assert (work.tree / "tests" / "test_app.py").read_bytes() == b"hidden\n"
        assert (work.tree / "app.py").read_bytes() == b"replaced\n"
        with pytest.raises(PatchRefused, match="tar archive"):
            await lay_overlay(FolderBox(work), b"no tar")

    asyncio.run(run())
