"""From a URL to a store."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from .errors import StoreMisconfigured
from .filesystem import FilesystemStore
from .ports import OpenStore


def open_store(url: str, *, endpoint_url: str | None = None) -> OpenStore:
    """The store behind `file:///folder`, a plain absolute path, or `s3://bucket/prefix`. Nothing is contacted yet.

    StoreMisconfigured: the URL names no store. `endpoint_url` is for S3-compatible servers.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        return FilesystemStore(Path(unquote(parts.path)))
    if not parts.scheme and url.startswith("/"):
        return FilesystemStore(Path(url))
    if parts.scheme == "s3" and parts.netloc:
        # boto3 is imported only by those who use it.
        from .s3 import S3Store

        return S3Store(parts.netloc, prefix=parts.path.strip("/"), endpoint_url=endpoint_url)
    raise StoreMisconfigured(f"{url!r} is not a store. Set PATCHYARD_STORE_URL to file:///folder or s3://bucket/prefix.")
