"""apply_patch: the whole patch is checked against the files, approved, and then written at once or not at all."""

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from patchyard.agent.approvals import Declined
from patchyard.agent.errors import ToolError
from patchyard.agent.ports import DeleteFile, FileOperation, Sandbox, SandboxError, WriteFile
from patchyard.agent.prompts import patch_grammar, tool_description
from patchyard.agent.thread import Thread
from patchyard.patch import ChangeSet, FileProblem, FileText, Patch, PatchError, RemoveFile, Scope, parse, plan, touched_paths
from patchyard.policy import PathClass, classify_write, resolve
from patchyard.protocol.events import ItemCompleted, ItemStarted
from patchyard.protocol.items import FileChangeItem, ItemStatus
from patchyard.protocol.model_items import FunctionCall
from patchyard.protocol.policies import DangerFullAccess, SandboxPolicy, WorkspaceWrite

from .calls import Arguments, ToolCall, function_spec, parse_arguments

_LARGEST_FILE = 16 * 1024 * 1024
"""Bytes of a file that a patch may touch."""
_WORST_LAST = (PathClass.WRITABLE, PathClass.READ_ONLY_SANDBOX, PathClass.PROTECTED, PathClass.OUTSIDE)


class PatchArguments(Arguments):
    """Arguments of the function form."""

    input: str


class ApplyPatch:
    """See the module. Freeform, or a function with one argument; calls of either form are understood."""

    name = "apply_patch"
    parallel = False

    def __init__(self, thread: Thread) -> None:
        self._thread = thread
        self.kind: Literal["function", "custom"] = "custom" if thread.config.freeform_patch else "function"

    def spec(self) -> Mapping[str, Any]:
        """See Tool."""
        description = tool_description(self.name)
        if self.kind == "function":
            properties = {"input": {"type": "string", "description": "The whole patch."}}
            return function_spec(self.name, f"{description}\n\n{patch_grammar()}", properties, required=("input",))
        grammar = {"type": "grammar", "syntax": "lark", "definition": patch_grammar()}
        return {"type": "custom", "name": self.name, "description": description, "format": grammar}

    def aborted(self, call: ToolCall, *, seconds: float, why: str) -> str:
        """See Tool."""
        return f"{why} after {seconds:.1f} seconds"

    async def run(self, call: ToolCall) -> str:
        """See Tool."""
        text = parse_arguments(PatchArguments, call).input if isinstance(call.item, FunctionCall) else call.item.input
        return await self.apply(call, text, cwd=self._thread.active_settings.cwd)

    async def apply(self, call: ToolCall, text: str, *, cwd: str) -> str:
        """Apply a patch whose relative paths start at `cwd`. ToolError when it does not fit or may not be written."""
        thread = self._thread
        root = thread.config.cwd
        try:
            patch = parse(text)
            scope = Scope(root, extra=("/",)).inside(posixpath.relpath(cwd, root) if cwd != root else ".")
            paths = [resolve(touched.key, root) for touched in touched_paths(patch, scope)]
        except PatchError as error:
            raise ToolError(f"The patch was not applied. {error}") from error
        box = await thread.box()
        changes = await self._plan(box, patch, paths, scope)
        item = FileChangeItem(id=call.id, changes=tuple(changes.file_updates()), status=ItemStatus.IN_PROGRESS)
        if item.id not in thread.journal.open_items:
            await thread.journal.commit(ItemStarted(item=item, started_at=thread.ports.clock.now_ms()))
        # A parked or cancelled call leaves its item open: whoever goes on with the turn, or ends it, closes it.
        try:
            policy = await self._allowed(item, paths)
            thread.changed_files = True
            await box.apply_files(_operations(changes, root), policy=policy)
        except Declined:
            self._completed(item, ItemStatus.DECLINED)
            raise
        except SandboxError as error:
            self._completed(item, ItemStatus.FAILED)
            raise ToolError(f"The patch was not applied: {error.info.message} Nothing was changed.") from error
        self._completed(item, ItemStatus.COMPLETED)
        seconds = thread.ports.clock.monotonic() - call.started
        return f"Exit code: 0\nWall time: {seconds:.1f} seconds\nOutput:\n{changes.report()}"

    async def _plan(self, box: Sandbox, patch: Patch, paths: Sequence[str], scope: Scope) -> ChangeSet:
        """Read what the patch touches, once, then compute the whole result in memory."""
        root = self._thread.config.cwd
        policy = self._thread.active_settings.sandbox
        found: dict[str, FileText | FileProblem] = {}
        for path in dict.fromkeys(paths):
            try:
                content = await box.read_file(path, policy=policy, limit=_LARGEST_FILE)
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
            return plan(patch, read, scope=scope)
        except PatchError as error:
            raise ToolError(f"The patch was not applied. {error}") from error

    async def _allowed(self, item: FileChangeItem, paths: Sequence[str]) -> SandboxPolicy:
        settings, root = self._thread.active_settings, self._thread.config.cwd
        worst = max((classify_write(p, cwd=root, sandbox=settings.sandbox) for p in paths), key=_WORST_LAST.index)
        await self._thread.approvals.patch(item.id, item.changes, paths, worst, settings)
        if worst is PathClass.WRITABLE:
            return settings.sandbox
        inside = all(classify_write(p, cwd=root, sandbox=WorkspaceWrite()) is PathClass.WRITABLE for p in paths)
        return WorkspaceWrite() if inside else DangerFullAccess()

    def _completed(self, item: FileChangeItem, status: ItemStatus) -> None:
        ended = item.model_copy(update={"status": status})
        self._thread.journal.post_soon(ItemCompleted(item=ended, completed_at=self._thread.ports.clock.now_ms()))


def _operations(changes: ChangeSet, root: str) -> list[FileOperation]:
    return [
        DeleteFile(resolve(operation.key, root))
        if isinstance(operation, RemoveFile)
        else WriteFile(resolve(operation.key, root), operation.data, operation.mode)
        for operation in changes.operations
    ]
