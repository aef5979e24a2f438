"""Identifiers. Everything that is created gets a UUIDv7: sortable by creation time, and the time can be read back."""

import hashlib
import os
import time
import uuid
from datetime import UTC, datetime
from typing import Annotated

from pydantic import StringConstraints

TenantId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
"""Owner of tasks, caps, budgets and secrets. Safe in keys and paths. One machine: `default`."""

Uuid7 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")]
"""Canonical lower-case UUIDv7 (RFC 9562): ids of tasks, threads and submissions. A turn's id is its submission's."""

DEFAULT_TENANT = "default"


def new_id(unix_ms: int | None = None) -> str:
    """A new UUIDv7. `unix_ms` is the creation time in milliseconds; now when absent."""
    ms = time.time_ns() // 1_000_000 if unix_ms is None else unix_ms
    return _uuid7(ms, os.urandom(10))


def derived_id(unix_ms: int, seed: str) -> str:
    """A UUIDv7 that is the same for the same time and seed: for what may be written down twice."""
    return _uuid7(unix_ms, hashlib.sha256(seed.encode()).digest()[:10])


def _uuid7(ms: int, tail: bytes) -> str:
    value = (ms & (1 << 48) - 1) << 80 | int.from_bytes(tail, "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))


def created_at(uuid7: str) -> datetime:
    """The creation time (UTC, millisecond precision) inside a UUIDv7. ValueError when it is not one."""
    parsed = uuid.UUID(uuid7)
    if parsed.version != 7:
        raise ValueError(f"not a UUIDv7: {uuid7}")
    return datetime.fromtimestamp((parsed.int >> 80) / 1000, tz=UTC)
