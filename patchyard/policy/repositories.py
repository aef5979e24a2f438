"""What counts as the same repository for approvals."""

import posixpath
from typing import assert_never
from urllib.parse import urlsplit

from patchyard.protocol.tasks import ArchiveSource, GitSource, NoSource, RepositorySource


def approval_key(source: RepositorySource) -> str | None:
    """The name under which approvals of a repository are kept: its URL without `.git`, or its path.

    None: nothing that a later task could name again (an upload, or no repository), so nothing is remembered.
    """
    match source:
        case GitSource(url=url):
            return posixpath.normpath(url) if url.startswith("/") else _remote(url.strip())
        case ArchiveSource() | NoSource():
            return None
        case _:
            assert_never(source)


def _remote(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:  # no address at all, so no repository of this name is ever used
        return url
    if parts.scheme and parts.hostname:
        # Who asks for it does not make it another repository, and a token in a URL must not be shown in lists.
        host = parts.netloc.rpartition("@")[2].lower() if parts.scheme == "https" else parts.netloc
        query = f"?{parts.query}" if parts.query else ""
        url = f"{parts.scheme.lower()}://{host}{parts.path}{query}"
    return url.rstrip("/").removesuffix(".git").rstrip("/")
