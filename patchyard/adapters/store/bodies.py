"""A body in pieces of one size, whatever it comes from."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path

from .errors import StoreMisconfigured
from .ports import Body


async def pieces(data: Body, size: int) -> AsyncIterator[bytes]:
    """Pieces of exactly `size` bytes, the last one shorter; none for an empty body."""
    match data:
        case bytes():
            for start in range(0, len(data), size):
                yield data[start : start + size]
        case Path():
            async for piece in _file_pieces(data, size):
                yield piece
        case _:
            async for piece in _joined(data, size):
                yield piece


async def _file_pieces(path: Path, size: int) -> AsyncIterator[bytes]:
    try:
        file = await asyncio.to_thread(path.open, "rb")
    except OSError as error:
        raise StoreMisconfigured(f"The file to store cannot be read: {error.strerror}.") from error
    with file:
        while piece := await asyncio.to_thread(file.read, size):
            yield piece


async def _joined(chunks: AsyncIterable[bytes], size: int) -> AsyncIterator[bytes]:
    buffer = bytearray()
    async for chunk in chunks:
        buffer += chunk
        while len(buffer) >= size:
            yield bytes(buffer[:size])
            del buffer[:size]
    if buffer:
        yield bytes(buffer)
