"""Wakes this worker's channels when their threads get submissions."""

import asyncio

from ._core import READ_BLOCK_MS, QueueCore
from .errors import QueueUnavailable

RECONNECT_S = 0.5
"""Pause between tries while the server is away."""


class ControlReader:
    """One blocking read for all threads of a worker process."""

    def __init__(self, core: QueueCore, worker_id: str) -> None:
        self._core = core
        self._stream = f"ctl:{worker_id}"

    async def run(self) -> None:
        """Read until cancelled. Whatever may have been missed wakes every channel."""
        position: str | None = None
        while True:
            try:
                if position is None:
                    position = (await self._core.backend.bounds(self._stream)).newest
                    self._wake_all()
                for entry in await self._core.backend.read_stream(self._stream, position, count=500, block_ms=READ_BLOCK_MS):
                    position = entry.id
                    channel = self._core.channels.get(entry.fields[b"t"].decode())
                    if channel is not None:
                        channel.wake()
            except QueueUnavailable:
                position = None
                await asyncio.sleep(RECONNECT_S)

    def _wake_all(self) -> None:
        for channel in list(self._core.channels.values()):
            channel.wake()
