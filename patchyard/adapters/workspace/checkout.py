"""A checkout for one box: work tree and git folder apart, objects borrowed from the mirror.

In the box `/workspace` is writable; `/workspace/.git` (a file: `gitdir: /gitdir`), `/gitdir` and `/mirror` are read-only.
"""

import asyncio
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from .archives import RAW_ATTRIBUTES
from .errors import WorkspaceError, from_os_error
from .git import Git
from .mirrors import Mirror, Revision

WORKSPACE = "/workspace"
GIT_DIR = "/gitdir"
MIRROR = "/mirror"
BOX_UID = 1000
"""User and group of the boxes' commands."""
PROTECTED_NAMES = (".git", ".patchyard", ".codex", ".agents", ".aws")
"""Read-only in the work tree of a box, also when absent, so that they can't be made first and trusted later."""
_BRANCH = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._/+-]{0,200}$")
_CONFIG = """[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
\tlogallrefupdates = false
\thooksPath = /dev/null
\tfsmonitor = false
\tuntrackedCache = false
\tattributesFile = /dev/null
\texcludesFile = /dev/null
[gc]
\tauto = 0
[maintenance]
\tauto = false
[user]
\tname = Patchyard
\temail = patchyard@localhost
"""


@dataclass(frozen=True)
class WorkspaceMount:
    """One bind mount of a box: an absolute host path, the path inside, and whether it can only be read."""

    source: Path
    target: str
    read_only: bool


class WorkspaceNote(NamedTuple):
    """What is written beside a checkout, so that another process can go on with it."""

    thread_id: str
    mirror: str
    base_commit: str
    uid: int
    gid: int


NOTE = "note.json"


@dataclass(frozen=True)
class Workspace:
    """A checkout on this machine, ready to be mounted."""

    id: str
    folder: Path
    mirror: Path
    base_commit: str
    owner_uid: int
    """User that the box's commands must run as."""
    owner_gid: int

    @property
    def tree(self) -> Path:
        """The work tree."""
        return self.folder / "workspace"

    @property
    def git_dir(self) -> Path:
        """The git folder."""
        return self.folder / "gitdir"

    @property
    def mounts(self) -> tuple[WorkspaceMount, ...]:
        """What a box needs to see, outer mounts first."""
        return (
            WorkspaceMount(self.tree, WORKSPACE, read_only=False),
            WorkspaceMount(self.tree / ".git", f"{WORKSPACE}/.git", read_only=True),
            *self.git_mounts,
        )

    @property
    def git_mounts(self) -> tuple[WorkspaceMount, ...]:
        """What git needs to see of them."""
        return (
            WorkspaceMount(self.git_dir, GIT_DIR, read_only=True),
            WorkspaceMount(self.mirror, MIRROR, read_only=True),
        )

    @property
    def protected_names(self) -> tuple[str, ...]:
        """Names in the work tree's root that the box must not be able to make or change."""
        return PROTECTED_NAMES


@dataclass(frozen=True)
class Owner:
    """User and group of a checkout's files."""

    uid: int
    gid: int


def box_owner() -> Owner:
    """As root the worker hands checkouts to the box's own user; otherwise boxes have to run as the worker's user."""
    return Owner(BOX_UID, BOX_UID) if os.getuid() == 0 else Owner(os.getuid(), os.getgid())


def read_note(folder: Path) -> WorkspaceNote | None:
    """The note beside a checkout; None when there is none that can be read."""
    try:
        note = WorkspaceNote(**json.loads((folder / NOTE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    return note if all(isinstance(part, str) for part in note[:3]) else None


def open_checkout(folder: Path) -> Workspace | None:
    """A finished checkout that another process made; None when it is none."""
    note = read_note(folder)
    if note is None or not (folder / "workspace").is_dir() or not (folder / "gitdir").is_dir():
        return None
    return Workspace(folder.name, folder, Path(note.mirror), note.base_commit, note.uid, note.gid)


async def make_checkout(git: Git, mirror: Mirror, revision: Revision, folder: Path, *, thread_id: str) -> Workspace:
    """Check the revision out below `folder`, which must not exist. DiskFull and GitFailed leave what is there to the caller."""
    owner = box_owner()
    workspace = Workspace(
        id=folder.name,
        folder=folder,
        mirror=mirror.path,
        base_commit=revision.commit,
        owner_uid=owner.uid,
        owner_gid=owner.gid,
    )
    tags = await git.text(
        f"--git-dir={mirror.path}",
        "for-each-ref",
        f"--merged={revision.commit}",
        "--format=%(objectname) %(refname)",
        "refs/tags",
    )
    try:
        await asyncio.to_thread(_write_git_dir, workspace, mirror, revision, tags)
        await git.text(
            f"--git-dir={workspace.git_dir}",
            f"--work-tree={workspace.tree}",
            "read-tree",
            "-m",
            "-u",
            revision.commit,
            env={"GIT_ALTERNATE_OBJECT_DIRECTORIES": str(mirror.objects)},
        )
        await asyncio.to_thread(_finish, workspace, owner, thread_id)
    except OSError as error:
        raise from_os_error(error, "checking out the base") from error
    return workspace


def _write_git_dir(workspace: Workspace, mirror: Mirror, revision: Revision, tags: str) -> None:
    """The git folder by hand: one process less, and nothing in it that a template could bring."""
    workspace.tree.mkdir(parents=True)
    git_dir = workspace.git_dir
    for name in ("objects/info", "objects/pack", "refs/heads", "refs/tags", "info"):
        (git_dir / name).mkdir(parents=True)
    (git_dir / "config").write_text(_CONFIG)
    (git_dir / "info" / "attributes").write_text(RAW_ATTRIBUTES)
    packed = ["# pack-refs with: sorted \n"]
    refs = sorted(line.split(" ", 1)[::-1] for line in tags.splitlines() if " " in line)
    branch = revision.branch if revision.branch and _BRANCH.match(revision.branch) and ".." not in revision.branch else None
    if branch is not None:
        refs = sorted([*refs, [f"refs/heads/{branch}", revision.commit]])
    packed += [f"{value} {name}\n" for name, value in refs]
    (git_dir / "packed-refs").write_text("".join(packed))
    (git_dir / "HEAD").write_text(f"ref: refs/heads/{branch}\n" if branch else f"{revision.commit}\n")
    if (mirror.path / "shallow").is_file():
        shutil.copyfile(mirror.path / "shallow", git_dir / "shallow")


def _finish(workspace: Workspace, owner: Owner, thread_id: str) -> None:
    """Point everything at the places inside the box, and hand it to the box's user."""
    (workspace.git_dir / "objects" / "info" / "alternates").write_text(f"{MIRROR}/objects\n")
    pointer = workspace.tree / ".git"
    if pointer.is_symlink() or pointer.exists():
        raise WorkspaceError("The base commit holds an entry named .git in its root. Such a tree can't be worked on.")
    pointer.write_text(f"gitdir: {GIT_DIR}\n")
    if os.getuid() == 0:
        for root, folders, files in os.walk(workspace.folder):
            for name in (*folders, *files):
                os.chown(os.path.join(root, name), owner.uid, owner.gid, follow_symlinks=False)
    note = WorkspaceNote(thread_id, str(workspace.mirror), workspace.base_commit, owner.uid, owner.gid)
    # Outside of what a box sees, and written last: it says that the checkout is complete.
    (workspace.folder / NOTE).write_text(json.dumps(note._asdict()))
