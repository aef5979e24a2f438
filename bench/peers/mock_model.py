"""A model that thinks for no time: answers step n of the trajectory to a request that carries n tool outputs.

Speaks the Responses API as SSE (Codex, Patchyard) and Chat Completions as JSON (mini-swe-agent). Stateless, so that any number of
tasks share it; keeps the arrival times for the gaps. `GET /stats` and `POST /reset`.
"""

import asyncio
import json
import resource
import sys
import time
from typing import Any

from bench.peers.trajectory import ANSWER, COMMANDS, LIGHT

_last: dict[str, tuple[int, float]] = {}
_gaps: list[float] = []
_requests = 0


def _arrived(key: str, step: int) -> None:
    global _requests
    _requests += 1
    before = _last.pop(key, None)
    if before is not None and before[0] in LIGHT and step == before[0] + 1:
        _gaps.append((time.monotonic() - before[1]) * 1000)


def _responses(body: dict[str, Any], key: str) -> bytes:
    step = sum(1 for item in body["input"] if item.get("type") in ("function_call_output", "custom_tool_call_output"))
    _arrived(key, step)
    if step < len(COMMANDS):
        item = {"type": "function_call", "id": f"fc_{step}", "call_id": f"call_{step}", "name": "exec_command"}
        item["arguments"] = json.dumps({"cmd": COMMANDS[step]})
    else:
        content = [{"type": "output_text", "text": ANSWER}]
        item = {"type": "message", "id": "msg_1", "role": "assistant", "content": content}
    usage = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}
    events = [
        {"type": "response.created", "response": {"id": f"resp_{step}"}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {"id": f"resp_{step}", "usage": usage}},
    ]
    _last[key] = (step, time.monotonic())
    return b"".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events)


def _chat(body: dict[str, Any], key: str) -> bytes:
    step = sum(1 for message in body["messages"] if message["role"] == "tool")
    _arrived(key, step)
    command = COMMANDS[step] if step < len(COMMANDS) else "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    call = {
        "id": f"call_{step}",
        "type": "function",
        "function": {"name": "bash", "arguments": json.dumps({"command": command})},
    }
    message = {"role": "assistant", "content": "step", "tool_calls": [call]}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    _last[key] = (step, time.monotonic())
    answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "bench", "choices": [choice], "usage": usage}
    return json.dumps(answer).encode()


def _stats() -> bytes:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return json.dumps({"gaps_ms": _gaps, "requests": _requests, "cpu_s": used.ru_utime + used.ru_stime}).encode()


async def _handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except (asyncio.IncompleteReadError, ConnectionError):
            break
        lines = head.split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path = lines[0].split()[:2]
        kind, status = "application/json", "200 OK"
        if path.endswith("/responses") and method == "POST":
            body = json.loads(raw)
            payload, kind = _responses(body, str(body.get("prompt_cache_key") or headers.get("thread-id"))), "text/event-stream"
        elif path.endswith("/chat/completions"):
            body = json.loads(raw)
            payload = _chat(body, str(body.get("user") or headers.get("x-task") or writer.get_extra_info("peername")))
        elif path == "/stats":
            payload = _stats()
        elif path == "/reset":
            _gaps.clear()
            _last.clear()
            payload = b"{}"
        elif path.endswith("/models"):
            payload = b'{"object": "list", "data": []}'
        else:
            payload, status = b"{}", "404 Not Found"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(payload)}\r\n\r\n".encode() + payload)
        await writer.drain()
    writer.close()


async def _serve(port: int) -> None:
    server = await asyncio.start_server(_handle, "127.0.0.1", port, limit=1 << 24)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
