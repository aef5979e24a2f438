"""A small in-memory workspace for patches."""

from collections.abc import Callable

import pytest

from patchyard.patch import ChangeSet, FileText, RemoveFile, Scope, WriteFile, parse, plan


class Workspace:
    """Files in memory."""

    def __init__(self, **files: str | bytes) -> None:
        self.files = {name: FileText(data if isinstance(data, bytes) else data.encode(), 0o644) for name, data in files.items()}

    def plan(self, *lines: str, scope: Scope | None = None) -> ChangeSet:
        """Verify a patch given as the lines between begin and end."""
        return plan(parse("\n".join(["*** Begin Patch", *lines, "*** End Patch"])), self.files.get, scope=scope)

    def apply(self, *lines: str) -> ChangeSet:
        """Verify and do it."""
        changes = self.plan(*lines)
        for operation in changes.operations:
            match operation:
                case WriteFile(key, data, mode):
                    self.files[key] = FileText(data, mode)
                case RemoveFile(key):
                    del self.files[key]
        return changes

    def update(self, path: str, *lines: str) -> str:
        """Update one file; returns its text."""
        self.apply(f"*** Update File: {path}", *lines)
        return self[path]

    def __getitem__(self, path: str) -> str:
        return self.files[path].data.decode()


@pytest.fixture
def workspace() -> Callable[..., Workspace]:
    return Workspace
