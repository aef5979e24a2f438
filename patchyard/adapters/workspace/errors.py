"""What can go wrong with a workspace.

WorkspaceError
├── RepositoryNotAllowed    the source may not be used here
├── RepositoryNotFound      the source can't be read
├── RevisionNotFound        the source has no such commit, tag or branch
├── BrokenArchive           an uploaded bundle or tar can't be used
├── DiskFull                no space left
├── PatchTooLarge           the difference is over its bound
├── PatchRefused            a patch or overlay does not fit the base
└── GitFailed               git ended with an error that none of the above explains
"""

import errno

from patchyard.protocol.errors import ErrorCode, ErrorInfo


class WorkspaceError(Exception):
    """A workspace could not be made, read or changed. `info` is what users see; no host path of ours is in it."""

    code = ErrorCode.INTERNAL

    def __init__(self, message: str, **details: str) -> None:
        super().__init__(message)
        self.info = ErrorInfo.of(self.code, message, **details)


class RepositoryNotAllowed(WorkspaceError):
    """The source uses a protocol or a place that this service does not read from."""

    code = ErrorCode.REPOSITORY_NOT_ALLOWED


class RepositoryNotFound(WorkspaceError):
    """There is no repository at the source, or it can't be read with what this machine has."""

    code = ErrorCode.REPOSITORY_NOT_FOUND


class RevisionNotFound(WorkspaceError):
    """The repository has no such commit, tag or branch."""

    code = ErrorCode.REVISION_NOT_FOUND


class BrokenArchive(WorkspaceError):
    """The uploaded archive is damaged or holds what must not be extracted."""

    code = ErrorCode.INVALID_REQUEST


class DiskFull(WorkspaceError):
    """No space is left for mirrors and checkouts."""

    code = ErrorCode.DISK_FULL

    def __init__(self, what: str) -> None:
        super().__init__(
            f"No space left on the worker's disk while {what}. Free space in PATCHYARD_HOME, then send the task again."
        )


class PatchTooLarge(WorkspaceError):
    """The difference between base and work tree is over the bound."""

    code = ErrorCode.PAYLOAD_TOO_LARGE


class PatchRefused(WorkspaceError):
    """The patch or the overlay can't be laid over the base."""

    code = ErrorCode.VERIFICATION_FAILED


class GitFailed(WorkspaceError):
    """Git ended with an error."""


NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


def from_os_error(error: OSError, what: str) -> WorkspaceError:
    """An operating system error as one of ours."""
    if error.errno in NO_SPACE:
        return DiskFull(what)
    return WorkspaceError(f"The worker could not finish {what}: {error.strerror or type(error).__name__}.")
