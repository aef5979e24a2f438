"""A Responses server that writes the time into what it streams and remembers when requests arrived.

    python -m bench.stamping_model [--deltas N] [--every-ms 20] [--command CMD]

With a command, the first answer is that tool call; then comes a message of N deltas, each `<monotonic ns> `. It prints its port.
`GET /arrivals` gives `{thread: [ns of its first request, of its second, …]}`.
"""

import argparse
import asyncio
import json
import sys
import time
from typing import Any

_arrivals: dict[str, list[int]] = {}
_USAGE = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}


def _event(value: dict[str, Any]) -> bytes:
    return f"event: {value['type']}\ndata: {json.dumps(value)}\n\n".encode()


def _call(command: str) -> dict[str, Any]:
    arguments = json.dumps({"cmd": command})
    return {"type": "function_call", "id": "fc_0", "call_id": "call_0", "name": "exec_command", "arguments": arguments}


def _message(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "content": content, "status": "completed"}


async def _answer(writer: asyncio.StreamWriter, options: argparse.Namespace, body: dict[str, Any]) -> None:
    _arrivals.setdefault(str(body.get("prompt_cache_key")), []).append(time.monotonic_ns())
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    writer.write(_event({"type": "response.created", "response": {"id": "resp_1"}}))
    called = any(item.get("type") == "function_call_output" for item in body["input"])
    calls = options.command and not called
    item = _call(options.command) if calls else _message(await _stream(writer, options))
    writer.write(_event({"type": "response.output_item.done", "output_index": 0, "item": item}))
    writer.write(_event({"type": "response.completed", "response": {"id": "resp_1", "usage": _USAGE}}))
    await writer.drain()


async def _stream(writer: asyncio.StreamWriter, options: argparse.Namespace) -> str:
    """Deltas at an even pace; the whole text."""
    opened = {"type": "message", "id": "msg_1", "role": "assistant", "content": []}
    writer.write(_event({"type": "response.output_item.added", "output_index": 0, "item": opened}))
    parts = []
    due = time.monotonic()
    for _ in range(options.deltas):
        due += options.every_ms / 1000
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        parts.append(f"{time.monotonic_ns()} ")
        place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        writer.write(_event({"type": "response.output_text.delta", **place, "delta": parts[-1]}))
    return "".join(parts) or "done"


async def _handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, options: argparse.Namespace) -> None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = head.split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        if lines[0].startswith("POST"):
            await _answer(writer, options, json.loads(raw))
        else:
            text = json.dumps(_arrivals).encode()
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n".encode() + text)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        return
    finally:
        writer.close()


async def _serve(options: argparse.Namespace) -> None:
    server = await asyncio.start_server(lambda r, w: _handle(r, w, options), "127.0.0.1", 0, limit=1 << 24)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deltas", type=int, default=0)
    parser.add_argument("--every-ms", type=float, default=20)
    parser.add_argument("--command")
    try:
        asyncio.run(_serve(parser.parse_args()))
    except KeyboardInterrupt:
        sys.exit(0)
