import asyncio
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from patchyard.adapters.workspace import BrokenArchive, RepositoryNotFound, RevisionNotFound, WorkspaceManager
from patchyard.protocol.tasks import ArchiveSource, GitSource, NoSource

from .conftest import git

OpenManager = Callable[..., WorkspaceManager]


def test_checkout_layout(repository: Path, open_manager: OpenManager) -> None:
    async def run() -> None:
        manager = open_manager()
        base = await manager.prepare("default", GitSource(url=str(repository)), None)
        assert base.commit == git(repository, "rev-parse", "HEAD")
        workspace = await manager.checkout(base, thread_id="th")
        assert (workspace.tree / ".git").read_text() == "gitdir: /gitdir\n"
        assert (workspace.tree / "dos.txt").read_bytes() == b"one\r\ntwo\r\n"
        assert (workspace.tree / "run.sh").stat().st_mode & 0o111
        assert (workspace.git_dir / "HEAD").read_text() == "ref: refs/heads/main\n"
        assert (workspace.git_dir / "objects/info/alternates").read_text() == "/mirror/objects\n"
        assert [(m.target, m.read_only) for m in workspace.mounts] == [
            ("/workspace", False),
            ("/workspace/.git", True),
            ("/gitdir", True),
            ("/mirror", True),
        ]
        assert "v1.0" in (workspace.git_dir / "packed-refs").read_text()
        if os.getuid() == 0:
            inside = [*workspace.tree.rglob("*"), *workspace.git_dir.rglob("*"), workspace.tree, workspace.git_dir]
            assert {path.lstat().st_uid for path in inside} == {1000}
        manager.release(workspace)
        assert not workspace.folder.exists()
        manager.release(workspace)
        await manager.close()
        assert list((manager._root / "trash").iterdir()) == []
        assert list((manager._root / "journal").iterdir()) == []

    asyncio.run(run())


@pytest.mark.parametrize("base", ["main", "v1.0", "feature/login", "refs/heads/main", "full", "short"])
def test_base_by_branch_tag_and_commit(repository: Path, open_manager: OpenManager, base: str) -> None:
    head = git(repository, "rev-parse", "HEAD")
    asked = {"full": head, "short": head[:10]}.get(base, base)
    prepared = asyncio.run(open_manager().prepare("default", GitSource(url=str(repository)), asked))
    assert prepared.commit == head


def test_missing_base_names_near_ones(repository: Path, open_manager: OpenManager) -> None:
    with pytest.raises(RevisionNotFound, match="feature/login"):
        asyncio.run(open_manager().prepare("default", GitSource(url=str(repository)), "feature/logn"))
    with pytest.raises(RevisionNotFound, match=r"It has: .*main"):
        asyncio.run(open_manager(worker_id="w2").prepare("default", GitSource(url=str(repository)), "f" * 40))


def test_base_like_an_option_is_only_a_name(repository: Path, open_manager: OpenManager) -> None:
    with pytest.raises(RevisionNotFound):
        asyncio.run(open_manager().prepare("default", GitSource(url=str(repository)), "--output=/tmp/x"))


def test_new_commits_are_fetched_and_known_ones_are_not(repository: Path, open_manager: OpenManager) -> None:
    async def run() -> None:
        manager = open_manager()
        source = GitSource(url=str(repository))
        first = await manager.prepare("default", source, None)
        (repository / "new.txt").write_text("x")
        git(repository, "add", "-A")
        git(repository, "commit", "-q", "-m", "two")
        second = await manager.prepare("default", source, None)
        assert second.commit != first.commit
        await asyncio.to_thread(repository.rename, repository.with_name("moved"))
        (repository / ".git").mkdir(parents=True)
        again = await manager.prepare("default", source, first.commit)
        assert again.commit == first.commit

    asyncio.run(run())


def test_concurrent_tasks_share_one_mirror(repository: Path, open_manager: OpenManager) -> None:
    async def run() -> None:
        manager = open_manager()
        source = GitSource(url=str(repository))
        prepared = await asyncio.gather(*(manager.prepare("default", source, None) for _ in range(6)))
        spaces = await asyncio.gather(*(manager.checkout(base, thread_id="th") for base in prepared))
        assert len({space.mirror for space in spaces}) == 1
        assert len({space.folder for space in spaces}) == 6
        other = await manager.prepare("other", source, None)
        assert other.mirror.path != prepared[0].mirror.path

    asyncio.run(run())


def test_repository_without_a_commit(tmp_path: Path, open_manager: OpenManager) -> None:
    folder = tmp_path / "unborn"
    folder.mkdir()
    git(folder, "init", "-q")
    with pytest.raises(RevisionNotFound, match="no commit yet"):
        asyncio.run(open_manager().prepare("default", GitSource(url=str(folder)), None))


def test_repository_that_git_cannot_read(tmp_path: Path, open_manager: OpenManager) -> None:
    (tmp_path / "broken" / ".git").mkdir(parents=True)
    with pytest.raises(RepositoryNotFound):
        asyncio.run(open_manager().prepare("default", GitSource(url=str(tmp_path / "broken")), None))


def test_hooks_filters_and_fsmonitor_of_the_source_do_not_run(
    repository: Path, open_manager: OpenManager, tmp_path: Path
) -> None:
    proof = tmp_path / "proof"
    (repository / ".gitattributes").write_text("*.py filter=evil text eol=crlf ident\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "attributes")
    git(repository, "config", "filter.evil.smudge", f"touch {proof}; cat")
    git(repository, "config", "core.fsmonitor", f"touch {proof}")
    git(repository, "config", "uploadpack.packObjectsHook", f"touch {proof}; exec")
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {proof}\n")
    hook.chmod(0o755)

    async def run() -> bytes:
        manager = open_manager()
        workspace = await manager.checkout(
            await manager.prepare("default", GitSource(url=str(repository)), None), thread_id="th"
        )
        return (workspace.tree / "app.py").read_bytes()

    assert b"\r" not in asyncio.run(run())
    assert not proof.exists()


def test_instructions_come_from_the_base_commit(repository: Path, open_manager: OpenManager) -> None:
    async def run() -> None:
        manager = open_manager()
        base = await manager.prepare("default", GitSource(url=str(repository)), None)
        assert await manager.instructions(base) == (("AGENTS.md", "Run the tests.\n"),)
        assert await manager.instructions(base, folder="pkg") == (
            ("AGENTS.md", "Run the tests.\n"),
            ("pkg/AGENTS.md", "In pkg.\n"),
        )

    asyncio.run(run())


def test_bundle(repository: Path, open_manager: OpenManager, artefacts: dict[str, Path], tmp_path: Path) -> None:
    bundle = tmp_path / "repository.bundle"
    git(repository, "bundle", "create", "-q", str(bundle), "HEAD", "--all")
    artefacts["a1"] = bundle

    async def run() -> None:
        manager = open_manager(allow_local=False)
        source = ArchiveSource(artefact_id="a1", format="bundle")
        base = await manager.prepare("default", source, None)
        assert base.commit == git(repository, "rev-parse", "HEAD")
        assert (await manager.prepare("default", source, "v1.0")).commit == base.commit
        assert ((await manager.checkout(base, thread_id="th")).tree / "app.py").exists()
        assert list((manager._root / "scratch").iterdir()) == []

    asyncio.run(run())


def test_broken_bundle(open_manager: OpenManager, artefacts: dict[str, Path], tmp_path: Path) -> None:
    artefacts["a1"] = tmp_path / "x"
    artefacts["a1"].write_bytes(b"# v2 git bundle\nnonsense")
    with pytest.raises(BrokenArchive, match="git bundle create"):
        asyncio.run(open_manager().prepare("default", ArchiveSource(artefact_id="a1", format="bundle"), None))


def _tar(path: Path, *members: tuple[str, bytes | str]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path


def test_tar_becomes_a_base_commit_without_its_git_folder(
    open_manager: OpenManager, artefacts: dict[str, Path], tmp_path: Path
) -> None:
    artefacts["a1"] = _tar(
        tmp_path / "t.tgz",
        ("src/app.py", b"x = 1\n"),
        (".gitignore", b"*.log\n"),
        ("kept.log", b"kept"),
        (".git/config", b"[core]\n\tfsmonitor = touch /tmp/owned\n"),
        ("src/.GIT/hooks/post-checkout", b"#!/bin/sh\n"),
    )

    async def run() -> None:
        manager = open_manager()
        source = ArchiveSource(artefact_id="a1", format="tar")
        base, again = [await manager.prepare("default", source, None) for _ in range(2)]
        assert base == again
        tree = (await manager.checkout(base, thread_id="th")).tree
        files = sorted(str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file())
        assert files == [".git", ".gitignore", "kept.log", "src/app.py"]
        with pytest.raises(RevisionNotFound):
            await manager.prepare("default", source, "main")

    asyncio.run(run())


@pytest.mark.parametrize(
    "members",
    [
        (("../escape", b"x"),),
        (("/etc/passwd", b"x"), ("../../x", b"y")),
        (("link", "/etc"), ("link/passwd", b"x")),
        (("link", "../.."),),
    ],
)
def test_hostile_tar_is_refused(
    members: tuple[tuple[str, bytes | str], ...], open_manager: OpenManager, artefacts: dict[str, Path], tmp_path: Path
) -> None:
    artefacts["a1"] = _tar(tmp_path / "t.tgz", *members)
    with pytest.raises(BrokenArchive):
        asyncio.run(open_manager().prepare("default", ArchiveSource(artefact_id="a1", format="tar"), None))
    assert list((tmp_path / "root" / "scratch").iterdir()) == []


def test_broken_tar(open_manager: OpenManager, artefacts: dict[str, Path], tmp_path: Path) -> None:
    artefacts["a1"] = tmp_path / "x"
    artefacts["a1"].write_bytes(b"not a tar")
    with pytest.raises(BrokenArchive, match="no tar file"):
        asyncio.run(open_manager().prepare("default", ArchiveSource(artefact_id="a1", format="tar"), None))


def test_no_repository(open_manager: OpenManager) -> None:
    async def run() -> None:
        manager = open_manager()
        workspace = await manager.checkout(await manager.prepare("default", NoSource(), None), thread_id="th")
        assert [path.name for path in workspace.tree.iterdir()] == [".git"]

    asyncio.run(run())


async def _nobody(thread_id: str) -> bool:
    return False


async def _everybody(thread_id: str) -> bool:
    return True


def _kill(manager: WorkspaceManager) -> None:
    os.close(manager._journal._handle or -1)


def test_what_a_killed_worker_left_is_swept(repository: Path, open_manager: OpenManager) -> None:
    async def run() -> None:
        dead = open_manager(worker_id="dead")
        base = await dead.prepare("default", GitSource(url=str(repository)), None)
        workspace = await dead.checkout(base, thread_id="t1")
        locked = workspace.tree / "locked"
        locked.mkdir()
        (locked / "file").write_text("x")
        locked.chmod(0)
        alive = open_manager(worker_id="alive")
        mine = await alive.checkout(base, thread_id="t2")
        await alive.sweep(_nobody)
        assert workspace.folder.exists()  # its worker still holds the journal
        _kill(dead)
        await alive.sweep(_nobody)
        assert not workspace.folder.exists()
        assert mine.folder.exists()
        assert list((alive._root / "trash").iterdir()) == []
        assert list((alive._root / "left").iterdir()) == []

    asyncio.run(run())


def test_the_next_worker_goes_on_with_the_work_tree(repository: Path, open_manager: OpenManager) -> None:
    async def run() -> None:
        dead, alive = open_manager(worker_id="dead"), open_manager(worker_id="alive")
        base = await dead.prepare("default", GitSource(url=str(repository)), None)
        work = await dead.checkout(base, thread_id="t1")
        (work.tree / "half.done").write_text("x")
        assert alive.adopt(base, thread_id="t1") is None
        _kill(dead)
        await alive.sweep(_everybody)
        other = await alive.prepare("other", GitSource(url=str(repository)), None)
        adopted = alive.adopt(other, thread_id="t1")
        assert adopted is not None
        assert (adopted.tree / "half.done").read_text() == "x"
        assert adopted.base_commit == base.commit
        assert alive.adopt(base, thread_id="t1") is None
        alive.leave(adopted, thread_id="t1")
        again = open_manager(worker_id="third").adopt(base, thread_id="t1")
        assert again is not None
        assert again.mounts[0].source == again.tree

    asyncio.run(run())


def test_a_work_tree_of_another_base_is_not_adopted(repository: Path, open_manager: OpenManager) -> None:
    async def run() -> None:
        manager = open_manager()
        base = await manager.prepare("default", GitSource(url=str(repository)), None)
        manager.leave(await manager.checkout(base, thread_id="t1"), thread_id="t1")
        empty = await manager.prepare("default", NoSource(), None)
        assert manager.adopt(empty, thread_id="t1") is None
        assert manager.adopt(base, thread_id="t1") is None

    asyncio.run(run())
