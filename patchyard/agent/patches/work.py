"""The whole patch is checked against the files, approved, and then written at once or not at all."""

import asyncio
import posixpath
from collections.abc import Sequence
from typing import NamedTuple

from patchyard.agent.approvals import Declined
from patchyard.agent.config import Settings
from patchyard.agent.errors import ToolError
from patchyard.agent.journal import uninterrupted
from patchyard.agent.ports import DeleteFile, FileOperation, Sandbox, SandboxError, WriteFile
from patchyard.agent.thread import Thread
from patchyard.patch import (
    ChangeSet,
    FileProblem,
    FileText,
    Patch,
    PatchError,
    RemoveFile,
    Scope,
    attempted_updates,
    parse,
    plan,
    touched_paths,
)
from patchyard.policy import PathClass, classify_write, resolve
from patchyard.protocol.events import ItemCompleted, ItemStarted
from patchyard.protocol.items import FileChangeItem, FileUpdate, ItemStatus
from patchyard.protocol.policies import DangerFullAccess, SandboxPolicy, WorkspaceWrite

_LARGEST_FILE = 16 * 1024 * 1024
"""Bytes of a file that a patch may touch."""
_WORST_LAST = (PathClass.WRITABLE, PathClass.READ_ONLY_SANDBOX, PathClass.PROTECTED, PathClass.OUTSIDE)


class _Read(NamedTuple):
    patch: Patch
    scope: Scope
    paths: Sequence[str]
    """Absolute, all that it touches."""


class PatchWork:
    """Applies the patches of a thread, one after another: each is checked against what the one before left."""

    def __init__(self, thread: Thread) -> None:
        self._thread = thread
        self._turn = asyncio.Lock()

    async def apply(self, item_id: str, text: str, *, cwd: str, settings: Settings, can_park: bool = True) -> str:
        """Apply a patch whose relative paths start at `cwd`; the report. ToolError when it does not fit or may not be written.

        `can_park`: a question may park the turn, and a call that is cut off leaves its item open for whoever goes on with the
        turn. Otherwise a question counts as refused after the hold time, and the item is closed here.
        """
        read = self._read(item_id, text, cwd)
        async with self._turn:
            box = await self._thread.box()
            changes = await self._plan(item_id, box, read, settings)
            item = FileChangeItem(id=item_id, changes=tuple(changes.file_updates()), status=ItemStatus.IN_PROGRESS)
            try:
                if item.id not in self._thread.journal.open_items:
                    await self._thread.journal.commit(ItemStarted(item=item, started_at=self._thread.ports.clock.now_ms()))
                await self._write(box, item, changes, read, settings, can_park=can_park)
            except BaseException:
                if not can_park:
                    self._completed(item, ItemStatus.INTERRUPTED)
                raise
        return changes.report()

    def unfit(self, item_id: str, why: str, changes: Sequence[FileUpdate] = ()) -> ToolError:
        """The error for a patch that can't be applied. Who watches sees that it was tried, and why it failed."""
        message = f"The patch was not applied. {why}"
        journal, now = self._thread.journal, self._thread.ports.clock.now_ms()
        if item_id not in journal.open_items:
            begun = FileChangeItem(id=item_id, changes=tuple(changes), status=ItemStatus.IN_PROGRESS)
            journal.post(ItemStarted(item=begun, started_at=now))
        failed = FileChangeItem(id=item_id, changes=tuple(changes), status=ItemStatus.FAILED, error=message)
        journal.post(ItemCompleted(item=failed, completed_at=now))
        return ToolError(message)

    def _read(self, item_id: str, text: str, cwd: str) -> _Read:
        root = self._thread.config.cwd
        scope = Scope(root, extra=("/",))
        tried: list[FileUpdate] = []
        try:
            patch = parse(text)
            tried = attempted_updates(patch, scope)
            scope = scope.inside(posixpath.relpath(cwd, root) if cwd != root else ".")
            tried = attempted_updates(patch, scope)
            return _Read(patch, scope, [resolve(touched.key, root) for touched in touched_paths(patch, scope)])
        except PatchError as error:
            raise self.unfit(item_id, str(error), tried) from error

    async def _write(
        self, box: Sandbox, item: FileChangeItem, changes: ChangeSet, read: _Read, settings: Settings, *, can_park: bool
    ) -> None:
        thread = self._thread
        try:
            policy = await self._allowed(item, read.paths, settings, can_park=can_park)
            thread.changed_files = True
            writing = self._finish(box, item, changes, policy)
            # The tool's turn can be interrupted at once; a program may be gone any time, and nobody goes on for it.
            await (writing if can_park else uninterrupted(writing))
        except Declined as declined:
            self._completed(item, ItemStatus.DECLINED, declined.info.message)
            raise
        except SandboxError as error:
            message = f"The patch was not applied: {error.info.message} Nothing was changed."
            self._completed(item, ItemStatus.FAILED, message)
            raise ToolError(message) from error

    async def _finish(self, box: Sandbox, item: FileChangeItem, changes: ChangeSet, policy: SandboxPolicy) -> None:
        await box.apply_files(_operations(changes, self._thread.config.cwd), policy=policy)
        self._completed(item, ItemStatus.COMPLETED)

    async def _plan(self, item_id: str, box: Sandbox, wanted: _Read, settings: Settings) -> ChangeSet:
        """Read what the patch touches, once, then compute the whole result in memory."""
        root = self._thread.config.cwd
        found: dict[str, FileText | FileProblem] = {}
        for path in dict.fromkeys(wanted.paths):
            try:
                content = await box.read_file(path, policy=settings.sandbox, limit=_LARGEST_FILE)
            except SandboxError as error:
                found[path] = FileProblem(error.info.message)
                continue
            if content is not None:
                found[path] = FileText(content.data, content.mode)

        def read(key: str) -> FileText | None:
            file = found.get(resolve(key, root))
            if isinstance(file, FileProblem):
                raise file
            return file

        try:
            return plan(wanted.patch, read, scope=wanted.scope)
        except PatchError as error:
            raise self.unfit(item_id, str(error), attempted_updates(wanted.patch, wanted.scope)) from error

    async def _allowed(
        self, item: FileChangeItem, paths: Sequence[str], settings: Settings, *, can_park: bool
    ) -> SandboxPolicy:
        root = self._thread.config.cwd
        worst = max((classify_write(p, cwd=root, sandbox=settings.sandbox) for p in paths), key=_WORST_LAST.index)
        await self._thread.approvals.patch(item.id, item.changes, paths, worst, settings, can_park=can_park)
        if worst is PathClass.WRITABLE:
            return settings.sandbox
        inside = all(classify_write(p, cwd=root, sandbox=WorkspaceWrite()) is PathClass.WRITABLE for p in paths)
        return WorkspaceWrite() if inside else DangerFullAccess()

    def _completed(self, item: FileChangeItem, status: ItemStatus, error: str | None = None) -> None:
        journal = self._thread.journal
        if item.id not in journal.open_items:
            return  # the turn's end has closed it
        ended = item.model_copy(update={"status": status, "error": error})
        journal.post_soon(ItemCompleted(item=ended, completed_at=self._thread.ports.clock.now_ms()))


def _operations(changes: ChangeSet, root: str) -> list[FileOperation]:
    return [
        DeleteFile(resolve(operation.key, root))
        if isinstance(operation, RemoveFile)
        else WriteFile(resolve(operation.key, root), operation.data, operation.mode)
        for operation in changes.operations
    ]
