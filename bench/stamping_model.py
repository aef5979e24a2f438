"""A Responses server that writes the time into what it streams and remembers when requests arrived.

    python -m bench.stamping_model [--deltas N] [--every-ms 20] [--command CMD] [--context-kb 0]

With a command, the first answer is that tool call; then comes a message of N deltas, each `<monotonic ns> `. It prints its port.
`GET /arrivals` gives `{thread: [ns of its first request, of its second, …]}`. A task whose instruction begins with one of WAITS
gets an answer that makes its turn wait for good instead. With a context, each turn's first step is a message of that size.
"""

import argparse
import asyncio
import json
import sys
import time
from typing import Any

WAITS: dict[str, tuple[str, dict[str, Any]] | None] = {
    "Think for long.": None,
    "Ask me.": ("request_user_input", {"questions": [{"id": "q", "question": "Which one?", "options": ["a", "b"]}]}),
    "Run something long.": ("exec_command", {"cmd": "sleep 3000", "yield_time_ms": 30000}),
}
"""Instruction to the call that makes the turn wait; None: the model thinks. Also after the call's output, it thinks."""

_arrivals: dict[str, list[int]] = {}
_USAGE = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}


def _event(value: dict[str, Any]) -> bytes:
    return f"event: {value['type']}\ndata: {json.dumps(value)}\n\n".encode()


def _call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function_call", "id": "fc_0", "call_id": "call_0", "name": name, "arguments": json.dumps(arguments)}


def _message(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "content": content, "status": "completed"}


def _end(writer: asyncio.StreamWriter, item: dict[str, Any], *, last: bool = True) -> None:
    writer.write(_event({"type": "response.output_item.done", "output_index": 0, "item": item}))
    writer.write(_event({"type": "response.completed", "response": {"id": "resp_1", "usage": _USAGE, "end_turn": last}}))


async def _item(writer: asyncio.StreamWriter, options: argparse.Namespace, given: list[dict[str, Any]]) -> dict[str, Any]:
    """What this step brings."""
    called = any(item.get("type") == "function_call_output" for item in given)
    said = json.dumps([item for item in given if item.get("role") == "user"])
    waits = next((instruction for instruction in WAITS if instruction in said), None)
    call = WAITS[waits] if waits else ("exec_command", {"cmd": options.command}) if options.command else None
    if waits and (called or call is None):
        await asyncio.Event().wait()
    return _call(*call) if call and not called else _message(await _stream(writer, options))


async def _answer(writer: asyncio.StreamWriter, options: argparse.Namespace, body: dict[str, Any]) -> None:
    _arrivals.setdefault(str(body.get("prompt_cache_key")), []).append(time.monotonic_ns())
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    writer.write(_event({"type": "response.created", "response": {"id": "resp_1"}}))
    if options.context_kb and not any(item.get("role") == "assistant" for item in body["input"]):
        _end(writer, _message("a line of what the turn knows\n" * int(options.context_kb * 1000 / 30)), last=False)
    else:
        _end(writer, await _item(writer, options, body["input"]))
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
    parser.add_argument("--context-kb", type=float, default=0)
    try:
        asyncio.run(_serve(parser.parse_args()))
    except KeyboardInterrupt:
        sys.exit(0)
