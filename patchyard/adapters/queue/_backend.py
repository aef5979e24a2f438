"""The narrow line between the queue core and its server: scripts by name, and blocking reads of streams.

Implementers: `_redis.RedisBackend` (Lua on Redis or Valkey) and `patchyard.testing.queue.MemoryBackend`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

ScriptName = Literal[
    "submit", "claim", "beat", "commit", "finish_turn", "park", "release", "reap", "trim", "publish_live", "read", "budget"
]

Reply = list[Any]
"""A script's answer: bytes, ints and nested lists; the first element is a status word."""


class StreamEntry(NamedTuple):
    """An entry of a stream."""

    id: str
    fields: Mapping[bytes, bytes]


class StreamBounds(NamedTuple):
    """Ids of a stream's oldest and newest entry; "0-0" when it is empty."""

    oldest: str
    newest: str


class Backend(Protocol):
    """Runs the queue's scripts. All raise QueueUnavailable."""

    async def run(
        self, script: ScriptName, args: Mapping[str, Any], blobs: Sequence[bytes] = (), *, retry: bool = True
    ) -> Reply:
        """Run a script atomically. `args` without None values; `blobs` travel outside the JSON. `retry`: more than one try."""
        ...

    async def read_stream(self, name: str, after: str, *, count: int, block_ms: int) -> Sequence[StreamEntry]:
        """Entries of a stream after an id, waiting up to `block_ms` for the first one."""
        ...

    async def bounds(self, name: str) -> StreamBounds:
        """Where a stream begins and ends now."""
        ...

    async def server_facts(self) -> Mapping[str, str]:
        """Version and the settings that decide about durability."""
        ...

    async def close(self) -> None:
        """Drop all connections. Twice is harmless."""
        ...


def key_prefix(shard: int) -> str:
    """Prefix of all keys of a shard; the braces keep them in one cluster slot."""
    return f"py:{{{shard}}}:"
