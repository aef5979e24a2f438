"""Which sources may be read, decided from the text alone."""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from .errors import RepositoryNotAllowed, RepositoryNotFound

_SCP_FORM = re.compile(r"^(?P<user>[A-Za-z0-9._-]+)@(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*):(?P<path>[^:].*)$")
_HOST = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$")
_ALLOWED = "Use an https:// or ssh:// address."


@dataclass(frozen=True)
class RemoteUrl:
    """An address that git may be given, with the one protocol that it needs."""

    url: str
    protocol: str


def check_url(url: str, *, allow_local: bool) -> RemoteUrl:
    """The address if it may be used: https, ssh, and absolute paths only for the local user.

    RepositoryNotAllowed names what to use instead; RepositoryNotFound: a local folder that is no repository.
    """
    if any(ord(char) < 0x20 or char == "\x7f" for char in url) or url.startswith("-"):
        raise RepositoryNotAllowed(f"The repository address holds control characters or starts with a dash. {_ALLOWED}")
    if url.startswith("/"):
        return _local(url, allow_local=allow_local)
    scp = _SCP_FORM.match(url)
    if scp:
        return RemoteUrl(f"ssh://{scp['user']}@{scp['host']}/{scp['path'].lstrip('/')}", "ssh")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        raise RepositoryNotAllowed(f"The repository address can't be read: {error}. {_ALLOWED}") from error
    if parts.scheme == "file":
        return _local(parts.path, allow_local=allow_local)
    if parts.scheme not in ("https", "ssh"):
        shown = f"{parts.scheme}://" if parts.scheme else "a relative path"
        raise RepositoryNotAllowed(f"Repositories are not read through {shown}. {_ALLOWED}")
    if not _HOST.match(host):
        raise RepositoryNotAllowed(f"The repository address has no proper host name. {_ALLOWED}")
    if parts.password is not None or (parts.scheme == "https" and parts.username is not None):
        raise RepositoryNotAllowed(
            "The repository address holds credentials, which would be stored with the task. Use ssh with a key instead."
        )
    return RemoteUrl(url, parts.scheme)


def _local(path: str, *, allow_local: bool) -> RemoteUrl:
    if not allow_local:
        raise RepositoryNotAllowed(
            "Local paths are only read for the local user. Use https:// or ssh://, or upload a git bundle."
        )
    folder = Path(path)
    if not folder.is_dir():
        raise RepositoryNotFound(f"There is no folder {path}. Check the path.")
    git_folder = (folder / ".git").exists()
    bare = (folder / "HEAD").is_file() and (folder / "objects").is_dir()
    if not git_folder and not bare:
        raise RepositoryNotFound(
            f"{path} is not a git repository. Run `git init && git add -A && git commit -m base` in it, or upload an archive."
        )
    return RemoteUrl(str(folder), "file")
