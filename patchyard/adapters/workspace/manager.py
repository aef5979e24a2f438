"""The one door to workspaces: sources in, checkouts out, and everything removed again."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from patchyard.protocol.tasks import ArchiveSource, GitSource, NoSource, RepositorySource

from .archives import import_empty, import_tar
from .checkout import Workspace, make_checkout, open_checkout, read_note
from .errors import BrokenArchive, GitFailed, RepositoryNotFound, RevisionNotFound, from_os_error
from .git import Git
from .instructions import Instructions, read_base_file, read_instructions
from .mirrors import Mirror, Mirrors, Revision
from .sources import RemoteUrl, check_url
from .trash import Journal, Trash, take_orphans

FetchArtefact = Callable[[str, str, Path], Awaitable[None]]
"""Writes a tenant's artefact (tenant id, artefact id) to a file. BrokenArchive when there is none."""


@dataclass(frozen=True)
class PreparedBase:
    """A base whose objects are on this machine."""

    mirror: Mirror
    revision: Revision

    @property
    def commit(self) -> str:
        """The base commit."""
        return self.revision.commit


class WorkspaceManager:
    """Mirrors, checkouts and their removal below `root`; one per worker process.

    `allow_local`: whether absolute paths may be read, which only the local user's own service may say.
    """

    def __init__(self, root: Path, *, worker_id: str, fetch_artefact: FetchArtefact, allow_local: bool = False) -> None:
        self._root = root.absolute()
        self._allow_local = allow_local
        self._fetch_artefact = fetch_artefact
        self._git = Git(config_file=self._root / "gitconfig")
        self._mirrors = Mirrors(self._root / "mirrors", self._git)
        self._scratch = self._root / "scratch"
        self._journal = Journal(self._root / "journal", worker_id)
        self._trash = Trash(self._root / "trash")
        self._left = self._root / "left"

    def open(self) -> None:
        """Make the folders and take this process's journal. WorkspaceError when the disk does not allow it."""
        try:
            self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Only used when a folder of the local user is read, which may belong to another account than the worker's.
            (self._root / "gitconfig").write_text("[safe]\n\tdirectory = *\n")
            for folder in (self._left, self._root / "checkouts"):
                folder.mkdir(exist_ok=True)
            self._journal.open()
        except OSError as error:
            raise from_os_error(error, "opening the workspace folder") from error

    async def close(self) -> None:
        """Throw away nothing that is in use; finish deletions and give the journal back."""
        await self._trash.settle()
        self._journal.close()

    async def prepare(self, tenant_id: str, source: RepositorySource, base: str | None) -> PreparedBase:
        """Bring the base's objects to this machine. Errors are the classes of errors.py, each with its remedy."""
        match source:
            case GitSource():
                url = check_url(source.url, allow_local=self._allow_local)
                mirror = self._mirrors.at(tenant_id, f"git {url.url}")
                return PreparedBase(mirror, await self._mirrors.resolve(mirror, url, base))
            case ArchiveSource(format="bundle"):
                return await self._from_bundle(tenant_id, source, base)
            case ArchiveSource():
                return await self._from_tar(tenant_id, source, base)
            case NoSource():
                return await self._empty(tenant_id)
            case _:
                assert_never(source)

    async def checkout(self, prepared: PreparedBase, *, thread_id: str) -> Workspace:
        """A new work tree at the base; `release` or `leave` it in the end."""
        folder = self._new_folder()
        self._journal.made(folder)
        try:
            return await make_checkout(self._git, prepared.mirror, prepared.revision, folder, thread_id=thread_id)
        except BaseException:
            self._discard(folder)
            raise

    def adopt(self, prepared: PreparedBase, *, thread_id: str) -> Workspace | None:
        """The work tree that a thread's former worker left on this machine, just as it was; None when there is none.

        Only the owner of the thread's lease may ask, and the former worker's box must be gone.
        """
        self._collect_orphans()
        folder = self._new_folder()
        self._journal.made(folder)
        try:
            (self._left / thread_id).rename(folder)
        except OSError:
            self._journal.gone(folder)
            return None
        workspace = open_checkout(folder)
        if workspace is None or workspace.base_commit != prepared.commit:
            self._discard(folder)
            return None
        return workspace

    async def instructions(self, prepared: PreparedBase, *, folder: str = "") -> Sequence[Instructions]:
        """AGENTS.md files of the base commit that apply in `folder`, root first."""
        return await read_instructions(self._git, prepared.mirror, prepared.commit, folder=folder)

    async def base_file(self, prepared: PreparedBase, path: str) -> bytes | None:
        """A file of the base commit, at most 256 KiB of it; None when there is none."""
        return await read_base_file(self._git, prepared.mirror, prepared.commit, path, limit=256 * 1024)

    def release(self, workspace: Workspace) -> None:
        """Give a checkout up: a rename now, the deletion in the background. Call after its box is gone; twice is harmless."""
        self._discard(workspace.folder)

    def leave(self, workspace: Workspace, *, thread_id: str) -> None:
        """Give a checkout up in favour of the worker that goes on with the thread."""
        self._leave(workspace.folder, thread_id)
        self._journal.gone(workspace.folder)

    async def sweep(self, is_wanted: Callable[[str], Awaitable[bool]]) -> int:
        """Remove what killed or suspended processes left, except work trees of threads that `is_wanted` names.

        Returns how many folders were deleted.
        """
        self._collect_orphans()
        for folder in list(self._left.iterdir()) if self._left.is_dir() else []:
            if not await is_wanted(folder.name):
                self._trash.throw_away(folder)
        await self._trash.settle()
        return await self._trash.empty()

    async def settle(self) -> None:
        """Wait for deletions that were begun."""
        await self._trash.settle()

    def _new_folder(self) -> Path:
        return self._root / "checkouts" / uuid.uuid4().hex

    def _collect_orphans(self) -> None:
        for folder in take_orphans(self._root / "journal", roots=self._root / "checkouts"):
            note = read_note(folder)
            if note is None:
                self._trash.throw_away(folder)  # it was not finished
            else:
                self._leave(folder, note.thread_id)

    def _leave(self, folder: Path, thread_id: str) -> None:
        target = self._left / thread_id
        try:
            if target.exists():
                self._trash.throw_away(target)
            folder.rename(target)
        except OSError:
            self._trash.throw_away(folder)

    def _discard(self, folder: Path) -> None:
        self._trash.throw_away(folder)
        self._journal.gone(folder)

    async def _from_bundle(self, tenant_id: str, source: ArchiveSource, base: str | None) -> PreparedBase:
        mirror = self._mirrors.at(tenant_id, f"artefact {source.artefact_id}")
        async with self._artefact(tenant_id, source.artefact_id) as file:
            try:
                revision = await self._mirrors.resolve(mirror, RemoteUrl(str(file), "file"), base)
            except (GitFailed, RepositoryNotFound, RevisionNotFound) as error:
                if isinstance(error, RevisionNotFound) and base is not None:
                    raise
                raise BrokenArchive(
                    "The uploaded file is no complete git bundle. Make it with `git bundle create repo.bundle HEAD --all`."
                ) from error
            return PreparedBase(mirror, revision)

    async def _from_tar(self, tenant_id: str, source: ArchiveSource, base: str | None) -> PreparedBase:
        if base is not None:
            raise RevisionNotFound("An archive of a tree has no revisions. Leave the base out, or upload a git bundle.")
        mirror = self._mirrors.at(tenant_id, f"artefact {source.artefact_id}")
        async with self._mirrors.lock(mirror):
            await self._mirrors.ensure(mirror)
            commit = await self._mirrors.main_commit(mirror)
            if commit is None:
                async with self._artefact(tenant_id, source.artefact_id) as file:
                    commit = await import_tar(self._git, mirror, file, self._scratch)
        return PreparedBase(mirror, Revision(commit, "main"))

    async def _empty(self, tenant_id: str) -> PreparedBase:
        mirror = self._mirrors.at(tenant_id, "none")
        async with self._mirrors.lock(mirror):
            await self._mirrors.ensure(mirror)
            commit = await self._mirrors.main_commit(mirror) or await import_empty(self._git, mirror, self._scratch)
        return PreparedBase(mirror, Revision(commit, "main"))

    @asynccontextmanager
    async def _artefact(self, tenant_id: str, artefact_id: str) -> AsyncIterator[Path]:
        """The artefact as a file, gone afterwards."""
        try:
            self._scratch.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise from_os_error(error, "fetching an artefact") from error
        file = self._scratch / f"artefact-{uuid.uuid4().hex}"
        try:
            try:
                await self._fetch_artefact(tenant_id, artefact_id, file)
            except OSError as error:
                raise from_os_error(error, "fetching an artefact") from error
            yield file
        finally:
            await asyncio.to_thread(file.unlink, missing_ok=True)
