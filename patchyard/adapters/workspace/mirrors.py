"""Bare mirrors of repositories, one per tenant and source. Objects are only ever added: running boxes borrow them."""

import asyncio
import fcntl
import hashlib
import os
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from .errors import GitFailed, RepositoryNotFound, RevisionNotFound, from_os_error
from .git import Git, GitResult, last_line
from .sources import RemoteUrl

FETCH_TIMEOUT_S = 900
"""A large repository over a slow line."""
_COMMIT_ID = re.compile(r"^[0-9a-f]{40}$")
_SHORT_ID = re.compile(r"^[0-9a-f]{7,39}$")
_LOCK_POLL_S = 0.02
_NOT_THERE = (
    "not found",
    "does not exist",
    "does not appear to be a git repository",
    "authentication failed",
    "could not read username",
    "permission denied",
    "access denied",
    "the requested url returned error: 4",
)


@dataclass(frozen=True)
class Mirror:
    """A mirror on this machine."""

    path: Path

    @property
    def objects(self) -> Path:
        """Its object folder."""
        return self.path / "objects"


@dataclass(frozen=True)
class Revision:
    """A base that was found."""

    commit: str
    branch: str | None
    """Name of the branch that was asked for, or of the repository's HEAD; None for a tag or a commit."""


class Mirrors:
    """Makes and updates mirrors below `root`, laid out as `<tenant>/<key>.git`."""

    def __init__(self, root: Path, git: Git) -> None:
        self._root = root
        self._git = git
        self._locks: OrderedDict[str, asyncio.Lock] = OrderedDict()

    def at(self, tenant_id: str, key: str) -> Mirror:
        """Where the mirror of a source is, whether or not it exists."""
        return Mirror(self._root / tenant_id / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.git")

    @asynccontextmanager
    async def lock(self, mirror: Mirror) -> AsyncIterator[None]:
        """One writer at a time, over all worker processes of this machine."""
        key = str(mirror.path)
        local = self._locks.setdefault(key, asyncio.Lock())
        async with local:
            try:
                mirror.path.parent.mkdir(parents=True, exist_ok=True)
                handle = os.open(f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise from_os_error(error, "making a mirror") from error
            try:
                while not _try_lock(handle):  # noqa: ASYNC110 - another process holds it: nothing here can tell when
                    await asyncio.sleep(_LOCK_POLL_S)
                yield
            finally:
                os.close(handle)

    async def ensure(self, mirror: Mirror) -> None:
        """Make the bare repository if it is not there. Call under `lock`."""
        if (mirror.path / "HEAD").exists():
            return
        await self._git.text("init", "-q", "--bare", "--template=", "--initial-branch=main", str(mirror.path))

    async def resolve(self, mirror: Mirror, source: RemoteUrl, base: str | None) -> Revision:
        """Find the base and bring its objects in; asks the source only for what the mirror lacks.

        RepositoryNotFound and RevisionNotFound say what to do next.
        """
        if base is not None and _COMMIT_ID.match(base) and await self.has_commit(mirror, base):
            return Revision(base, None)
        async with self.lock(mirror):
            await self.ensure(mirror)
            refs = await self._remote_refs(source)
            found = _pick(refs, base)
            if found is not None and (commit := await self._commit_of(mirror, found.commit)) is not None:
                return Revision(commit, found.branch)
            await self._fetch(mirror, source, refs, base)
        return await self._resolve_local(mirror, refs, base, found)

    async def has_commit(self, mirror: Mirror, commit: str) -> bool:
        """Whether the mirror holds this commit."""
        if not (mirror.path / "HEAD").exists():
            return False
        result = await self._git.run(f"--git-dir={mirror.path}", "cat-file", "-e", f"{commit}^{{commit}}")
        return result.code == 0

    async def main_commit(self, mirror: Mirror) -> str | None:
        """The commit of `main` in a mirror that we filled ourselves; None when it is still empty."""
        return await self._commit_of(mirror, "refs/heads/main")

    async def _resolve_local(
        self, mirror: Mirror, refs: Mapping[str, str], base: str | None, found: Revision | None
    ) -> Revision:
        if found is not None and (commit := await self._commit_of(mirror, found.commit)) is not None:
            return Revision(commit, found.branch)
        if base is not None and (_COMMIT_ID.match(base) or _SHORT_ID.match(base)):
            commit = await self._commit_of(mirror, base)
            if commit is not None:
                return Revision(commit, None)
        raise _revision_not_found(refs, base)

    async def _commit_of(self, mirror: Mirror, name: str) -> str | None:
        """The commit behind a name or an id; bundles list a tag's object only, so tags are peeled here."""
        result = await self._git.run(
            f"--git-dir={mirror.path}", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"
        )
        lines = result.stdout.decode().split()
        return lines[-1] if result.code == 0 and lines else None

    async def _remote_refs(self, source: RemoteUrl) -> dict[str, str]:
        """All references of the source; `HEAD` and `HEAD@` (the branch that it names) among them."""
        result = await self._git.run(
            "ls-remote", "--symref", "--quiet", "--", source.url, protocols=(source.protocol,), timeout_s=120
        )
        if result.code != 0:
            raise _unreadable(source, result)
        refs: dict[str, str] = {}
        for line in result.stdout.decode("utf-8", "replace").splitlines():
            value, _, name = line.partition("\t")
            if value.startswith("ref: "):
                refs[f"{name}@"] = value.removeprefix("ref: ")
            elif _COMMIT_ID.match(value):
                refs[name] = value
        return refs

    async def _fetch(self, mirror: Mirror, source: RemoteUrl, refs: Mapping[str, str], base: str | None) -> None:
        specs = ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"]
        if base is not None and base in refs and base.startswith("refs/"):
            specs.append(f"+{base}:{base}")
        elif "HEAD" in refs and "HEAD@" not in refs:
            specs.append("+HEAD:refs/patchyard/head")
        result = await self._fetch_specs(mirror, source, specs)
        if result.code != 0:
            raise _unreadable(source, result)
        if base is not None and _COMMIT_ID.match(base) and not await self.has_commit(mirror, base):
            # Not below any branch or tag (a force-pushed commit, a pull request's head): many servers still give it by id.
            await self._fetch_specs(mirror, source, [f"+{base}:refs/patchyard/asked/{base}"])

    async def _fetch_specs(self, mirror: Mirror, source: RemoteUrl, specs: list[str]) -> GitResult:
        args = ["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--update-shallow", "--force", "--prune"]
        return await self._git.run(
            f"--git-dir={mirror.path}",
            *(args if len(specs) > 1 else args[:-1]),
            "--",
            source.url,
            *specs,
            protocols=(source.protocol,),
            timeout_s=FETCH_TIMEOUT_S,
        )


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pick(refs: Mapping[str, str], base: str | None) -> Revision | None:
    if base is None:
        branch = refs.get("HEAD@", "")
        return Revision(refs["HEAD"], branch.removeprefix("refs/heads/") or None) if "HEAD" in refs else None
    for name in (f"refs/heads/{base}", f"refs/tags/{base}", base if base.startswith("refs/") else ""):
        if name in refs:
            commit = refs.get(f"{name}^{{}}", refs[name])
            return Revision(commit, name.removeprefix("refs/heads/") if name.startswith("refs/heads/") else None)
    return None


def _revision_not_found(refs: Mapping[str, str], base: str | None) -> RevisionNotFound:
    names = [
        name.removeprefix("refs/heads/").removeprefix("refs/tags/")
        for name in refs
        if name.startswith(("refs/heads/", "refs/tags/")) and not name.endswith("^{}")
    ]
    if base is None or not names:
        return RevisionNotFound("The repository has no commit yet. Commit something, then send the task again.")
    near = get_close_matches(base, names, n=5, cutoff=0.5)
    hint = f"Did you mean: {', '.join(near)}?" if near else f"It has: {', '.join(names[:8])}{', …' if len(names) > 8 else ''}."
    return RevisionNotFound(f"The repository has no commit, tag or branch {base!r}. {hint}", base=base, near=", ".join(near))


def _unreadable(source: RemoteUrl, result: GitResult) -> Exception:
    told = result.stderr.lower()
    if any(text in told for text in ("host key verification failed",)):
        return RepositoryNotFound(
            f"{source.url}: the host's ssh key is not known to the worker. Add it to its known_hosts file."
        )
    if any(
        text in told for text in ("could not resolve", "couldn't connect", "connection refused", "timed out", "unreachable")
    ):
        return RepositoryNotFound(
            f"{source.url} can't be reached from the worker: {last_line(result.stderr)}. Check host and network."
        )
    if any(text in told for text in _NOT_THERE):
        return RepositoryNotFound(
            f"There is no repository at {source.url}, or the worker may not read it. Check the address and the worker's access."
        )
    return GitFailed(f"Reading {source.url} failed: {last_line(result.stderr)}.")
