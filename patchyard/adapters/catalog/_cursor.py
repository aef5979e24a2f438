"""Opaque cursors of lists."""

import base64
import binascii
import hashlib
import json

from .errors import InvalidCursor

_VERSION = 1


def encode(last_id: str, *filters: str | None) -> str:
    """A cursor behind the row `last_id` of the list with these filters."""
    value = [_VERSION, last_id, _mark(filters)]
    return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")


def decode(cursor: str, *filters: str | None) -> str:
    """The id of the last row that was shown. InvalidCursor when it was made for other filters, or by somebody else."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        value = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, UnicodeError):
        raise InvalidCursor from None
    match value:
        case [version, str(last_id), str(mark)] if version == _VERSION and mark == _mark(filters):
            return last_id
        case _:
            raise InvalidCursor


def _mark(filters: tuple[str | None, ...]) -> str:
    return hashlib.sha256(json.dumps(filters).encode()).hexdigest()[:12]
