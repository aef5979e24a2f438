"""Keys that every backend can hold: a folder, S3 and memory agree on them."""

import re

from .errors import InvalidKey

_SEGMENT = re.compile(r"[A-Za-z0-9_=+@~,-][A-Za-z0-9._=+@~,-]*")
"""No leading dot: neither `.`/`..` nor the folder of temporary files can be named."""
_MAX_SEGMENT = 200
"""Bytes; a file name holds 255 and the temporary name needs some."""
_MAX_KEY = 1000
"""Bytes; S3 takes 1024 and a configured prefix needs some."""


def check_key(key: str) -> str:
    """The key itself. InvalidKey says what is wrong with it."""
    if not key or len(key) > _MAX_KEY:
        raise InvalidKey(key, f"it must have 1 to {_MAX_KEY} characters")
    for segment in key.split("/"):
        if len(segment) > _MAX_SEGMENT:
            raise InvalidKey(key, f"a part between slashes is longer than {_MAX_SEGMENT} characters")
        if not _SEGMENT.fullmatch(segment):
            raise InvalidKey(
                key, "each part between slashes starts with a letter or digit and holds letters, digits and ._=+@~,-"
            )
    return key


def check_prefix(prefix: str) -> str:
    """A prefix for listings: empty, or the beginning of a valid key. InvalidKey."""
    if prefix:
        head, _, rest = prefix.rpartition("/")
        if head:
            check_key(head)
        if rest:
            check_key(rest)
        if not head and not rest:
            raise InvalidKey(prefix, "it starts with a slash")
    return prefix
