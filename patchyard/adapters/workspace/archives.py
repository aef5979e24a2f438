"""Uploaded sources: a git bundle, or a tar of a tree that becomes one base commit."""

import asyncio
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

from .errors import NO_SPACE, BrokenArchive, DiskFull, from_os_error
from .git import Git
from .mirrors import Mirror

MAX_MEMBERS = 500_000
"""Files of one tree; the largest public repositories have about 400,000."""
MAX_TREE_BYTES = 8 * 1024**3
"""Unpacked size: an archive bomb ends here."""
RAW_ATTRIBUTES = "* -text !eol !filter !ident !working-tree-encoding !diff !merge !whitespace\n"
"""For `info/attributes`, which overrules every .gitattributes: files are taken byte for byte."""
_IDENTITY = {
    f"GIT_{role}_{field}": value
    for role in ("AUTHOR", "COMMITTER")
    for field, value in (("NAME", "Patchyard"), ("EMAIL", "patchyard@localhost"), ("DATE", "2000-01-01T00:00:00Z"))
}
"""The same tree gives the same commit id on every machine."""


async def commit_tree_folder(git: Git, mirror: Mirror, folder: Path, message: str) -> str:
    """Commit all that is in `folder` as a parentless commit on `main`; returns its id."""
    info = mirror.path / "info"
    index = mirror.path / f"index-{os.getpid()}-{folder.name}"
    try:
        info.mkdir(exist_ok=True)
        (info / "attributes").write_text(RAW_ATTRIBUTES)
        env = {**_IDENTITY, "GIT_DIR": str(mirror.path), "GIT_WORK_TREE": str(folder), "GIT_INDEX_FILE": str(index)}
        await git.text("-c", "core.bare=false", "-C", str(folder), "add", "--all", "--force", "--", ".", env=env)
        tree = (await git.text("write-tree", env=env)).strip()
        commit = (await git.text("commit-tree", tree, "-m", message, env=env)).strip()
        await git.text("update-ref", "refs/heads/main", commit, env=env)
        return commit
    finally:
        index.unlink(missing_ok=True)


def extract_tree(archive: Path, folder: Path) -> None:
    """Unpack a tar of a tree: nothing outside `folder`, no devices, no ownership, no `.git`. BrokenArchive tells the member."""
    try:
        with tarfile.open(archive, mode="r:*") as tar:
            _extract_members(tar, folder)
    except tarfile.FilterError as error:
        raise BrokenArchive(f"The archive holds an entry that may not be unpacked: {error}. Pack the tree again.") from error
    except (tarfile.TarError, EOFError, UnicodeError) as error:
        raise BrokenArchive(f"The archive is damaged or no tar file: {error}. Upload it again.") from error
    except OSError as error:
        if error.errno in NO_SPACE:
            raise DiskFull("an archive was unpacked") from error
        raise BrokenArchive(f"The archive can't be unpacked: {error.strerror or error}. Upload it again.") from error


def _extract_members(tar: tarfile.TarFile, folder: Path) -> None:
    total = 0
    for count, member in enumerate(tar):
        total += member.size
        if count >= MAX_MEMBERS or total > MAX_TREE_BYTES:
            raise BrokenArchive(f"The archive is too large: more than {MAX_MEMBERS} entries or {MAX_TREE_BYTES >> 30} GiB.")
        if any(part.lower() in (".git", "git~1") for part in Path(member.name).parts):
            continue  # a repository's own folder can carry hooks and configuration; a bundle is the way to send history
        tar.extract(member, folder, filter="data")


async def import_tar(git: Git, mirror: Mirror, archive: Path, scratch: Path) -> str:
    """Unpack a tar below `scratch` and commit it. Returns the commit id."""
    folder = await asyncio.to_thread(_scratch_folder, scratch)
    try:
        await asyncio.to_thread(extract_tree, archive, folder)
        return await commit_tree_folder(git, mirror, folder, "Uploaded tree")
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


async def import_empty(git: Git, mirror: Mirror, scratch: Path) -> str:
    """An empty commit for a task without a repository. Returns its id."""
    folder = await asyncio.to_thread(_scratch_folder, scratch)
    try:
        return await commit_tree_folder(git, mirror, folder, "Empty workspace")
    finally:
        await asyncio.to_thread(folder.rmdir)


def _scratch_folder(scratch: Path) -> Path:
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(dir=scratch, prefix="tree-"))
    except OSError as error:
        raise from_os_error(error, "making a scratch folder") from error
