"""What the model client costs: a token through the client, a stopped consumer, a long history, and the replay model itself.

python bench/model_stream.py [--streams 50] [--json FILE]
"""

import argparse
import asyncio
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from websockets.extensions.permessage_deflate import PerMessageDeflate
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side
from websockets.utils import accept_key

sys.path.insert(0, str(Path(__file__).parents[1]))

from patchyard.adapters.model import ModelTransport, ProviderConfig, ResponsesClient
from patchyard.adapters.model.body import BodyBuilder
from patchyard.agent.ports import ItemDone, ModelRequest, TextDelta
from patchyard.protocol.model_items import FunctionCall, FunctionCallOutput, InputText, Message, ModelItem

USER = Message(role="user", content=(InputText(text="go"),))


def request(thread: str, items: list[ModelItem] | None = None) -> ModelRequest:
    return ModelRequest(model="m", instructions="x", input=items or [USER], tools=[], thread_id=thread, turn_id="u")


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def rss_mib(pid: int | str = "self") -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


class Replay:
    """A replay model in its own process, so that only the client's CPU is counted."""

    def __init__(self, script: dict[str, Any]) -> None:
        self._file = tempfile.NamedTemporaryFile("w", suffix=".json")  # noqa: SIM115 - closed with the process
        json.dump(script, self._file)
        self._file.flush()
        command = [sys.executable, "-m", "patchyard.replay", "serve", "--script", self._file.name]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
        assert self.process.stdout is not None
        self.base_url = self.process.stdout.readline().strip()

    def __enter__(self) -> "Replay":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate()
        self._file.close()


async def tokens(base_url: str, streams: int, pace_s: float) -> dict[str, float]:
    """All streams at once; each gets one token every 20 ms."""
    async with (
        ModelTransport(pace_s=pace_s) as transport,
        ResponsesClient(ProviderConfig(base_url=base_url), transport) as client,
    ):
        delivered = characters = 0

        async def consume(number: int) -> None:
            nonlocal delivered, characters
            async for event in client.stream(request(f"{pace_s}-{number}")):
                if isinstance(event, TextDelta):
                    delivered += 1
                    characters += len(event.delta)

        started, before = time.perf_counter(), cpu_s()
        await asyncio.gather(*(consume(number) for number in range(streams)))
        used, wall = cpu_s() - before, time.perf_counter() - started
        sent = characters / TOKEN_CHARS
        return {
            "streams": streams,
            "pace_ms": pace_s * 1000,
            "tokens_per_s": round(sent / wall),
            "events_per_token": round(delivered / sent, 2),
            "cpu_us_per_token": round(used / sent * 1e6, 1),
            "cpu_share": round(used / wall, 3),
        }


TOKENS = 200
TOKEN_CHARS = 5
TRICKLE = {"steps": [{"items": [{"message": "word " * TOKENS}], "token_delay_ms": 20}], "repeat_last": True}


async def steps(base_url: str, count: int) -> dict[str, float]:
    """Requests one after the other over one connection: what a step costs beyond the model."""
    times: list[float] = []
    async with ResponsesClient(ProviderConfig(base_url=base_url)) as client:
        before = cpu_s()
        for number in range(count):
            started = time.perf_counter()
            async for event in client.stream(request(f"s-{number}")):
                if isinstance(event, ItemDone):
                    times.append(time.perf_counter() - started)
        used = cpu_s() - before
    return {"p50_ms": round(statistics.median(times) * 1000, 2), "client_cpu_ms": round(used / count * 1000, 2)}


def long_history(items: int) -> dict[str, float]:
    """Building the body of a request with a long history, the first time and with one step more."""
    history: list[ModelItem] = [USER]
    for number in range(items // 2):
        history.append(FunctionCall(call_id=f"c{number}", name="exec_command", arguments='{"cmd": "sed -n 1,200p file.py"}'))
        history.append(FunctionCallOutput(call_id=f"c{number}", output="line of output\n" * 60))
    builder = BodyBuilder()
    started = time.perf_counter()
    size = len(builder.build(request("t", history)))
    first = time.perf_counter() - started
    again: list[float] = []
    for number in range(20):
        history = [*history, FunctionCall(call_id=f"n{number}", name="x", arguments="{}")]
        started = time.perf_counter()
        builder.build(request("t", history))
        again.append(time.perf_counter() - started)
    return {
        "items": items,
        "body_mib": round(size / 2**20, 2),
        "first_ms": round(first * 1000, 2),
        "next_p50_ms": round(statistics.median(again) * 1000, 2),
    }


async def stopped_consumer(deltas: int) -> dict[str, float]:
    """A server that sends as fast as it can, and a consumer that reads one event."""
    piece = b"".join(
        b'data: {"type":"response.output_text.delta","item_id":"%d","delta":"%s"}\n\n' % (n % 2, b"x" * 100) for n in range(100)
    )
    sent = 0
    stalled = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        while sent < deltas:
            writer.write(piece)
            try:
                await asyncio.wait_for(writer.drain(), 1)
            except TimeoutError:
                break
            sent += 100
        stalled.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with ResponsesClient(ProviderConfig(base_url=f"http://127.0.0.1:{port}/v1")) as client:
        before = rss_mib()
        stream = client.stream(request("t"))
        await anext(stream)
        await stalled.wait()
        grown = rss_mib() - before
        await stream.aclose()
    server.close()
    await server.wait_closed()
    return {"asked_for": deltas, "taken_from_the_server": sent, "rss_grown_mib": round(grown, 1)}


ANSWER_TOKENS = 4000
ITEM = "msg_0123456789abcdef0123456789abcdef"


def answer_events() -> list[bytes]:
    """A 4,000-token answer as a provider sends it."""
    events = [
        {
            "type": "response.output_text.delta",
            "item_id": ITEM,
            "output_index": 0,
            "content_index": 0,
            "delta": f" tok{number % 50}",
            "sequence_number": number,
        }
        for number in range(ANSWER_TOKENS)
    ]
    end = {"type": "response.completed", "response": {"id": "r", "usage": {"input_tokens": 1, "output_tokens": ANSWER_TOKENS}}}
    return [json.dumps(event).encode() for event in [*events, end]]


async def answer_server(per_chunk: int, tokens_per_s: int) -> None:
    """Serves that answer over SSE or, where it is asked, a WebSocket; so many deltas a chunk. Prints its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = re.search(r"(?i)sec-websocket-key: (\S+)", head)
        if key is not None:
            accept = f"sec-websocket-accept: {accept_key(key[1])}"
            writer.write(f"HTTP/1.1 101 Go\r\nupgrade: websocket\r\nconnection: upgrade\r\n{accept}\r\n\r\n".encode())
            await reader.read(1)
            pieces = [Frame(Opcode.TEXT, event).serialize(mask=False) for event in answer_events()]
            chunks = [b"".join(pieces[n : n + per_chunk]) for n in range(0, len(pieces), per_chunk)]
        else:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            pieces = [b"event: response.output_text.delta\ndata: %s\n\n" % event for event in answer_events()]
            bodies = [b"".join(pieces[n : n + per_chunk]) for n in range(0, len(pieces), per_chunk)]
            chunks = [b"%x\r\n%s\r\n" % (len(body), body) for body in bodies] + [b"0\r\n\r\n"]
        started, sent = time.perf_counter(), 0
        for chunk in chunks:
            writer.write(chunk)
            sent += per_chunk
            ahead = sent / tokens_per_s - (time.perf_counter() - started)
            if ahead > 0.005:
                await asyncio.sleep(ahead)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def answer(port: int, sockets: bool) -> dict[str, float]:
    """CPU of the client for one such answer."""
    config = ProviderConfig(base_url=f"http://127.0.0.1:{port}/v1", supports_websockets=sockets, websocket_prewarm=False)
    events = 0
    async with ResponsesClient(config) as client:
        before, started = cpu_s(), time.perf_counter()
        async for event in client.stream(request("a")):
            events += isinstance(event, TextDelta)
        return {"cpu_s": round(cpu_s() - before, 3), "wall_s": round(time.perf_counter() - started, 1), "events": events}


def answers(rounds: int) -> list[dict[str, Any]]:
    """A 4,000-token answer at 650 tokens/s, with a chunk for each delta and with 20 deltas a chunk, over both transports."""
    rows: list[dict[str, Any]] = []
    for per_chunk in (1, 20):
        command = [sys.executable, __file__, "--serve-answer", str(per_chunk)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            for sockets in (False, True):
                best = min((run(partial(answer, port, sockets)) for _ in range(rounds)), key=lambda row: row["cpu_s"])
                rows.append({"deltas_per_chunk": per_chunk, "transport": "websocket" if sockets else "sse", **best})
            server.terminate()
    return rows


def compression() -> dict[str, float]:
    """What permessage-deflate would cost and save on the same answer."""
    row: dict[str, float] = {}
    for name, make in (("plain", list), ("deflate", lambda: [PerMessageDeflate(False, False, 15, 15)])):
        sender = Protocol(Side.SERVER, max_size=None)
        sender.extensions = make()
        wire: list[bytes] = []
        for event in answer_events():
            sender.send_text(event)
            wire.append(b"".join(sender.data_to_send()))
        best = 9.0
        for _ in range(5):
            receiver = Protocol(Side.CLIENT, max_size=None)
            receiver.extensions = make()
            before = cpu_s()
            for message in wire:
                receiver.receive_data(message)
                receiver.events_received()
            best = min(best, cpu_s() - before)
        row |= {f"{name}_us_per_message": round(best / len(wire) * 1e6, 2), f"{name}_bytes": sum(map(len, wire)) // len(wire)}
    return row


def run(work: Callable[[], Coroutine[Any, Any, dict[str, float]]]) -> dict[str, float]:
    return asyncio.run(work())


def show(results: dict[str, Any]) -> None:
    for name, value in results.items():
        for row in value if isinstance(value, list) else [value]:
            print(name, row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve-answer", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--only-answers", action="store_true", help="only the 4,000-token answers")
    arguments = parser.parse_args()
    if arguments.serve_answer:
        asyncio.run(answer_server(arguments.serve_answer, 650))
        return
    if arguments.only_answers:
        show({"answers": answers(arguments.rounds), "compression": compression()})
        return
    results: dict[str, Any] = {"load": os.getloadavg()[0], "rss_start_mib": round(rss_mib(), 1)}
    with Replay(TRICKLE) as replay:
        # Both in turn within a round: the machine's speed drifts.
        results["tokens"] = [
            run(lambda pace=pace: tokens(replay.base_url, arguments.streams, pace))  # type: ignore[misc]
            for _ in range(arguments.rounds)
            for pace in (0.0, 0.025, 0.05)
        ]
        results["replay_rss_mib"] = round(rss_mib(replay.process.pid), 1)
    with Replay({"steps": [{"items": [{"message": "ok"}]}], "repeat_last": True}) as replay:
        results["steps"] = run(lambda: steps(replay.base_url, 300))
    results["history"] = long_history(2000)
    results["stopped_consumer"] = run(lambda: stopped_consumer(100_000))
    results["answers"] = answers(arguments.rounds)
    results["compression"] = compression()
    show(results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
