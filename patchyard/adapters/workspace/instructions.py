"""AGENTS.md files of the base commit, read from the mirror: what an agent writes later does not change its instructions."""

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from .git import Git
from .mirrors import Mirror

NAMES = ("AGENTS.override.md", "AGENTS.md")
"""Per folder the first that exists."""
MAX_BYTES = 32 * 1024
"""For all files together; the rest is cut off at the end."""


class Instructions(NamedTuple):
    """One file of instructions: its path in the repository and its text."""

    path: str
    text: str


async def read_instructions(git: Git, mirror: Mirror, commit: str, *, folder: str = "") -> tuple[Instructions, ...]:
    """The files that apply in `folder` (relative to the root), root first."""
    wanted = [""]
    for part in PurePosixPath(folder).parts:
        wanted.append(f"{wanted[-1]}{part}/")
    blobs = await _blobs(git, mirror, commit, [f"{place}{name}" for place in wanted for name in NAMES])
    found: list[Instructions] = []
    left = MAX_BYTES
    for place in wanted:
        first = next((f"{place}{name}" for name in NAMES if f"{place}{name}" in blobs), None)
        if first is None or left <= 0:
            continue
        result = await git.run(f"--git-dir={mirror.path}", "cat-file", "blob", blobs[first])
        data = result.stdout[:left]
        left -= len(data)
        text = data.decode("utf-8", "replace").replace("\0", "")
        if text.strip():
            found.append(Instructions(first, text))
    return tuple(found)


async def read_base_file(git: Git, mirror: Mirror, commit: str, path: str, *, limit: int) -> bytes | None:
    """The first `limit` bytes of a file; None when there is none at this path."""
    blob = (await _blobs(git, mirror, commit, [path])).get(path)
    if blob is None:
        return None
    result = await git.run(f"--git-dir={mirror.path}", "cat-file", "blob", blob)
    return result.stdout[:limit]


async def _blobs(git: Git, mirror: Mirror, commit: str, paths: Sequence[str]) -> dict[str, str]:
    """Object ids of the regular files among the paths."""
    listing = await git.text(
        f"--git-dir={mirror.path}", "--literal-pathspecs", "ls-tree", "-z", "--full-tree", commit, "--", *paths
    )
    blobs: dict[str, str] = {}
    for entry in listing.split("\0"):
        head, _, path = entry.partition("\t")
        fields = head.split()
        if len(fields) == 3 and fields[0] in ("100644", "100755"):  # a link is not followed
            blobs[path] = fields[2]
    return blobs
