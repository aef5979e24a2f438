"""The queue's scripts on Redis or Valkey: the only module that touches the redis library."""

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import NoPermissionError, NoScriptError, OutOfMemoryError, ReadOnlyError, RedisError, ResponseError

from ._backend import Reply, ScriptName, StreamBounds, StreamEntry, key_prefix
from .errors import QueueUnavailable

SOCKET_TIMEOUT_S = 5.0
"""A server that is silent for so long is treated as gone. Longer than any wait of a blocking read."""
CONNECT_TIMEOUT_S = 5.0
"""As long: a process that is short of CPU must not take its own delay for an outage. Who refuses does so at once."""
TRIES = 3
"""The library's default of 10 makes a caller wait a minute for an answer that is known after a second."""
CONNECTIONS = 64
"""Commands at once; more wait for a free connection."""

_RETRIED = (ConnectionLost,)
"""A server that refuses or hangs up is asked again; one that is silent has cost SOCKET_TIMEOUT_S already."""
_OUTAGES = ("OOM", "MISCONF", "BUSY", "NOAUTH", "WRONGPASS", "NOPERM", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS")
_OUTAGE_CLASSES = (OutOfMemoryError, ReadOnlyError, NoPermissionError)
_SETTINGS = ("appendonly", "appendfsync", "maxmemory-policy", "no-appendfsync-on-rewrite")


class RedisBackend:
    """See `_backend.Backend`. Connects when first used."""

    def __init__(self, url: str, *, shard: int = 0) -> None:
        self._prefix = key_prefix(shard)
        self._scripts: dict[ScriptName, _Script] = {}
        self._reads: set[asyncio.Task[Any]] = set()
        self._redis = _connect(url, retry=Retry(ExponentialBackoff(cap=0.5, base=0.05), TRIES, _RETRIED))
        self._once = _connect(url, retry=Retry(NoBackoff(), 0))

    async def run(
        self, script: ScriptName, args: Mapping[str, Any], blobs: Sequence[bytes] = (), *, retry: bool = True
    ) -> Reply:
        """Run a script; loads it where the server does not know it (yet, or any more after a restart)."""
        loaded = self._scripts.get(script) or self._load(script)
        client = self._redis if retry else self._once
        values = (1, self._prefix, json.dumps(args, separators=(",", ":")), *blobs)
        try:
            try:
                reply = await _execute(client, "EVALSHA", loaded.sha, *values)
            except NoScriptError:
                reply = await _execute(client, "EVAL", loaded.source, *values)
        except (RedisError, OSError) as error:
            raise _outage(error) from error
        return list(reply)

    async def read_stream(self, name: str, after: str, *, count: int, block_ms: int) -> Sequence[StreamEntry]:
        """See Backend. Cancelled at once, although the connection may notice it only when its wait is over (see `_execute`)."""
        words = ("XREAD", "COUNT", count, "BLOCK", block_ms, "STREAMS", self._prefix + name, after)
        read = asyncio.get_running_loop().create_task(_execute(self._once, *words))
        self._reads.add(read)
        read.add_done_callback(self._read_ended)
        try:
            reply = await asyncio.shield(read)
        except asyncio.CancelledError:
            read.cancel()
            raise
        except (RedisError, OSError) as error:
            raise _outage(error) from error
        if not reply:
            return []
        entries = next(iter(reply.values()))[0] if isinstance(reply, dict) else reply[0][1]
        return [StreamEntry(entry_id.decode(), fields) for entry_id, fields in entries]

    async def bounds(self, name: str) -> StreamBounds:
        """See Backend."""
        try:
            oldest = await _execute(self._redis, "XRANGE", self._prefix + name, "-", "+", "COUNT", 1)
            newest = await _execute(self._redis, "XREVRANGE", self._prefix + name, "+", "-", "COUNT", 1)
        except (RedisError, OSError) as error:
            raise _outage(error) from error
        return StreamBounds(*(entries[0][0].decode() if entries else "0-0" for entries in (oldest, newest)))

    async def server_facts(self) -> Mapping[str, str]:
        """See Backend. Settings that this user may not read are left out."""
        facts: dict[str, str] = {}
        try:
            info = await self._redis.info("server")
            facts.update({name: str(info[name]) for name in ("redis_version", "valkey_version") if name in info})
            for setting in _SETTINGS:
                try:
                    facts.update({str(name): str(value) for name, value in (await self._redis.config_get(setting)).items()})
                except ResponseError:
                    continue
        except (RedisError, OSError) as error:
            raise _outage(error) from error
        return facts

    async def close(self) -> None:
        """See Backend."""
        for read in self._reads:
            read.cancel()
        await self._redis.aclose()
        await self._once.aclose()
        await asyncio.gather(*self._reads, return_exceptions=True)

    def _read_ended(self, read: "asyncio.Task[Any]") -> None:
        """Mark a failure as seen: its reader may be gone."""
        self._reads.discard(read)
        if not read.cancelled():
            read.exception()

    def _load(self, script: ScriptName) -> "_Script":
        folder = resources.files("patchyard.adapters.queue").joinpath("lua")
        # With this first line a server without memory or disk refuses a script as a whole, instead of half-way through.
        first = "#!lua flags=no-writes" if script == "read" else "#!lua"
        parts = [folder.joinpath(f"{name}.lua").read_text("utf-8") for name in ("prelude", "ends", script)]
        source = "\n".join([first, *parts])
        self._scripts[script] = _Script(source)
        return self._scripts[script]


async def _execute(client: Redis, *words: Any) -> Any:
    """Run a command, and don't lose a cancellation that arrives meanwhile.

    The library sends through asyncio.wait_for, which on Python 3.11 swallows a cancellation when the sending is just done.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    execute: Any = client.execute_command
    reply = await execute(*words)
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError
    return reply


class _Script:
    def __init__(self, source: str) -> None:
        self.source = source
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


def _connect(url: str, *, retry: Retry) -> Redis:
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=CONNECTIONS,
        timeout=SOCKET_TIMEOUT_S,
        socket_timeout=SOCKET_TIMEOUT_S,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        retry=retry,
        health_check_interval=15,
        decode_responses=False,
    )
    return Redis.from_pool(pool)


def _outage(error: Exception) -> Exception:
    """QueueUnavailable for what time or an operator can mend; anything else is a fault of ours and stays what it is."""
    known = isinstance(error, _OUTAGE_CLASSES) or str(error).startswith(_OUTAGES)
    if isinstance(error, ResponseError) and not known:
        return error
    return QueueUnavailable(f"{type(error).__name__}: {error}")
