"""What REPO on the command line means: a URL, a path that the service can read itself, or a copy that is uploaded."""

import asyncio
import re
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from patchyard.cli.context import notice
from patchyard.cli.errors import CliError, UsageError
from patchyard.client import PatchyardClient
from patchyard.protocol.tasks import ArchiveSource, GitSource, RepositorySource

_SCP_LIKE = re.compile(r"^[\w.-]+@[\w.-]+:(?!/)")
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class GitFacts(NamedTuple):
    """What the CLI wants to know of a working copy."""

    root: Path
    dirty: bool


async def resolve_source(client: PatchyardClient, repo: str, *, service_url: str) -> RepositorySource:
    """The source that REPO names. UsageError: there is no such folder. Uploads when the service runs elsewhere."""
    if is_url(repo):
        return GitSource(url=repo)
    path = local_path(repo)
    if not await asyncio.to_thread(path.is_dir):
        raise UsageError(
            f"There is no folder {path}.",
            remedy="Name an existing folder, or a repository by its https:// or ssh:// URL.",
        )
    facts = await git_facts(path)
    if facts is not None and facts.dirty:
        notice("Uncommitted changes are not part of the task: the agent starts from the commit.")
    if await _service_reads_our_disk(client, service_url):
        return GitSource(url=str(facts.root if facts else path))
    with tempfile.TemporaryDirectory(prefix="patchyard-") as folder:
        if facts is not None:
            return await _upload_bundle(client, facts.root, Path(folder) / "repository.bundle")
        return await _upload_tree(client, path, Path(folder) / "tree.tar.gz")


async def repository_name(repo: str) -> str:
    """The URL or path under which tasks on REPO are listed."""
    path = local_path(repo)
    if is_url(repo) or not await asyncio.to_thread(path.is_dir):
        return repo
    facts = await git_facts(path)
    return str(facts.root if facts else path)


def is_url(repo: str) -> bool:
    """Whether it names a remote repository (`https://…`, `ssh://…`, `user@host:path`), not a folder."""
    return "://" in repo or bool(_SCP_LIKE.match(repo))


def local_path(repo: str) -> Path:
    """The folder that REPO names."""
    return Path(repo).expanduser().absolute()


async def _service_reads_our_disk(client: PatchyardClient, service_url: str) -> bool:
    if urlsplit(service_url).hostname not in _LOOPBACK:
        return False
    return (await client.info()).local_paths


async def git_facts(path: Path) -> GitFacts | None:
    """Root and state of the working copy that holds `path`; None: there is none."""
    code, root = await _git(path, "rev-parse", "--show-toplevel")
    if code != 0:
        bare, is_bare = await _git(path, "rev-parse", "--is-bare-repository")
        return GitFacts(path, dirty=False) if bare == 0 and is_bare == "true" else None
    _, changes = await _git(path, "status", "--porcelain", "--untracked-files=no")
    return GitFacts(Path(root), dirty=bool(changes))


class _GitAnswer(NamedTuple):
    code: int
    output: str


async def _git(path: Path, *args: str) -> _GitAnswer:
    try:
        process = await asyncio.create_subprocess_exec(
            "git",
            "-C",
            str(path),
            *args,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except FileNotFoundError:
        raise CliError("git is not installed.", remedy="Install git, or name the repository by its URL.") from None
    output, errors = await process.communicate()
    code = process.returncode or 0
    return _GitAnswer(code, (output if code == 0 else errors).decode("utf-8", "replace").strip())


async def _upload_bundle(client: PatchyardClient, root: Path, bundle: Path) -> ArchiveSource:
    notice("The service runs elsewhere: uploading the repository as a git bundle …")
    answer = await _git(root, "bundle", "create", "--quiet", str(bundle), "HEAD", "--branches", "--tags")
    if answer.code != 0:
        raise UsageError(f"{root} can't be bundled: {answer.output}", remedy="The repository needs at least one commit.")
    return ArchiveSource(artefact_id=(await client.upload(bundle)).artefact_id, format="bundle")


async def _upload_tree(client: PatchyardClient, path: Path, archive: Path) -> ArchiveSource:
    notice("The service runs elsewhere: uploading the folder as an archive …")
    await asyncio.to_thread(_pack, path, archive)
    return ArchiveSource(artefact_id=(await client.upload(archive)).artefact_id, format="tar")


def _pack(path: Path, archive: Path) -> None:
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(path, arcname=".")


def _is_archive(path: Path) -> bool:
    return path.is_file() and tarfile.is_tarfile(path)


async def upload_overlay(client: PatchyardClient, path: Path) -> str:
    """Upload a tar archive that the verification lays over the tree; its artefact id. UsageError: it is none."""
    if not await asyncio.to_thread(_is_archive, path):
        raise UsageError(f"{path} is not a tar archive.", remedy="Make one: tar cf overlay.tar -C FOLDER .")
    return (await client.upload(path)).artefact_id
