"""Asks an HTTP server on this machine whether it is there, without a client library."""

import asyncio

_TIMEOUT_S = 2.0


async def answers(host: str, port: int, path: str) -> bool:
    """Whether a GET of this path is answered with success within two seconds."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                status = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return status.startswith(b"HTTP/1.1 2")
