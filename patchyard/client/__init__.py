"""The Python SDK of the REST API: `PatchyardClient` (asyncio) and `SyncPatchyardClient` (blocking)."""

from ._transport import RetryPolicy
from .client import PatchyardClient
from .errors import (
    BadAnswer,
    Conflict,
    ConnectionFailed,
    InvalidRequest,
    NotFound,
    PatchyardError,
    QueueFull,
    RequestRefused,
    ServiceUnavailable,
    StreamLost,
    Unauthorized,
)
from .sync import SyncPatchyardClient

__all__ = [
    "BadAnswer",
    "Conflict",
    "ConnectionFailed",
    "InvalidRequest",
    "NotFound",
    "PatchyardClient",
    "PatchyardError",
    "QueueFull",
    "RequestRefused",
    "RetryPolicy",
    "ServiceUnavailable",
    "StreamLost",
    "SyncPatchyardClient",
    "Unauthorized",
]
