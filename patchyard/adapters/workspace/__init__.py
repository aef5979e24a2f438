"""Workspaces: mirrors of repositories, checkouts for boxes, patches out of boxes."""

from .checkout import BOX_UID, GIT_DIR, MIRROR, PROTECTED_NAMES, WORKSPACE, Workspace, WorkspaceMount
from .diff import BOX_PATH, MAX_PATCH_BYTES, CommandResult, Patch, compute_diff, run_in_box
from .errors import (
    BrokenArchive,
    DiskFull,
    GitFailed,
    PatchRefused,
    PatchTooLarge,
    RepositoryNotAllowed,
    RepositoryNotFound,
    RevisionNotFound,
    WorkspaceError,
)
from .fresh import lay_overlay, lay_patch
from .instructions import Instructions
from .manager import FetchArtefact, PreparedBase, WorkspaceManager
from .sources import RemoteUrl, check_url

__all__ = [
    "BOX_PATH",
    "BOX_UID",
    "GIT_DIR",
    "MAX_PATCH_BYTES",
    "MIRROR",
    "PROTECTED_NAMES",
    "WORKSPACE",
    "BrokenArchive",
    "CommandResult",
    "DiskFull",
    "FetchArtefact",
    "GitFailed",
    "Instructions",
    "Patch",
    "PatchRefused",
    "PatchTooLarge",
    "PreparedBase",
    "RemoteUrl",
    "RepositoryNotAllowed",
    "RepositoryNotFound",
    "RevisionNotFound",
    "Workspace",
    "WorkspaceError",
    "WorkspaceManager",
    "WorkspaceMount",
    "check_url",
    "compute_diff",
    "lay_overlay",
    "lay_patch",
    "run_in_box",
]
