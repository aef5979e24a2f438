"""Which repositories a caller may name."""

import asyncio
import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from patchyard.adapters.store import ObjectMissing, ObjectStore
from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.tasks import ArchiveSource, GitSource, NoSource, TaskSpec

from .auth import Caller
from .errors import refuse

_REMOTE = frozenset({"https", "ssh"})
"""Protocols without a helper program of one's own: `ext::`, `file:` and friends run or read what the service can."""
_SCP_LIKE = re.compile(r"^[\w.-]+@[\w.-]+:(?!/)[^\s]+$")


def artefact_key(tenant_id: str, artefact_id: str) -> str:
    """Where an artefact is in the store."""
    return f"{tenant_id}/artefacts/{artefact_id}"


async def check_sources(spec: TaskSpec, caller: Caller, store: ObjectStore) -> None:
    """Refuse what can't work before anything is written: repository_not_allowed, repository_not_found, not_found."""
    match spec.repository:
        case GitSource(url=url):
            await _check_git(url, caller)
        case ArchiveSource(artefact_id=artefact_id):
            await _check_artefact(store, caller, artefact_id, "repository.artefact_id")
        case NoSource():
            pass
    if spec.verify is not None and spec.verify.overlay_artefact_id is not None:
        await _check_artefact(store, caller, spec.verify.overlay_artefact_id, "verify.overlay_artefact_id")


async def _check_git(url: str, caller: Caller) -> None:
    if url.startswith("/"):
        if not caller.local:
            raise refuse(
                ErrorCode.REPOSITORY_NOT_ALLOWED,
                "Only the local user of the service's machine may name a repository by its path. "
                "Use an https:// or ssh:// URL, or upload a bundle (`patchyard fix FOLDER` does that by itself).",
            )
        await asyncio.to_thread(_check_folder, url)
        return
    try:
        parts = urlsplit(url)
    except ValueError:  # such as half an IPv6 address
        parts = urlsplit("")
    if url.startswith("-") or not ((parts.scheme in _REMOTE and parts.hostname) or _SCP_LIKE.match(url)):
        raise refuse(
            ErrorCode.REPOSITORY_NOT_ALLOWED,
            f"{url[:200]!r} can't be used: repositories are https:// or ssh:// URLs, user@host:path, or absolute local paths.",
        )
    if parts.scheme == "https" and parts.password:
        raise refuse(
            ErrorCode.REPOSITORY_NOT_ALLOWED,
            "The URL holds a password, which would be stored and shown. Configure credentials for git on the workers instead.",
        )


def _check_folder(path: str) -> None:
    if not os.path.isdir(path):
        raise refuse(
            ErrorCode.REPOSITORY_NOT_FOUND,
            f"There is no folder {path} on the service's machine. Name an existing git repository or folder by its absolute path.",
        )
    if not os.access(path, os.R_OK | os.X_OK):
        raise refuse(ErrorCode.REPOSITORY_NOT_FOUND, f"The service can't read {path}. Give its user the right to.")
    if not any(Path(path).iterdir()):
        raise refuse(ErrorCode.REPOSITORY_NOT_FOUND, f"The folder {path} is empty. Name the folder that holds the code.")


async def _check_artefact(store: ObjectStore, caller: Caller, artefact_id: str, field: str) -> None:
    try:
        await store.get_range(artefact_key(caller.tenant_id, artefact_id), 0, 1)
    except ObjectMissing:
        raise refuse(
            ErrorCode.NOT_FOUND,
            f"{field}: there is no artefact {artefact_id[:100]!r}. Upload it with POST /v1/artefacts first.",
        ) from None
