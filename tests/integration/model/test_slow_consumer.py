"""A turn that does not read: the socket is no longer read, and memory stays where it is."""

import asyncio
import re
import tracemalloc

import pytest
from websockets.frames import Frame, Opcode
from websockets.utils import accept_key

from patchyard.adapters.model import ProviderConfig, ResponsesClient
from patchyard.adapters.model.buffer import MAX_EVENTS
from patchyard.adapters.model.connections.sockets import HIGH_WATER
from patchyard.agent.ports import ItemAdded, ModelRequest, TextDelta
from patchyard.protocol.model_items import InputText, Message
from tests.waiting import WAIT_S

DELTAS = 100_000
PAD = "0123456789" * 20


class _Flood:
    """Sends 100,000 deltas for items that alternate, so that none can be joined with its neighbour."""

    def __init__(self) -> None:
        self.sent = 0
        self.stalled = asyncio.Event()
        self.done = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = re.search(r"(?i)sec-websocket-key: (\S+)", head)
        wrap = _sse if key is None else _frame
        if key is not None:
            accept = f"sec-websocket-accept: {accept_key(key[1])}\r\n"
            writer.write(f"HTTP/1.1 101 Switching\r\nupgrade: websocket\r\nconnection: upgrade\r\n{accept}\r\n".encode())
            await reader.read(1)
        else:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        writer.write(wrap('{"type":"response.output_item.added","item":{"type":"x","id":"a"}}'))
        for number in range(DELTAS):
            writer.write(wrap(f'{{"type":"response.output_text.delta","item_id":"{number % 2}","delta":"{PAD}"}}'))
            self.sent = number + 1
            if writer.transport.get_write_buffer_size() > 64 * 1024:
                drained = asyncio.ensure_future(writer.drain())
                await asyncio.wait({drained}, timeout=1)
                if not drained.done():
                    self.stalled.set()
                await drained
        writer.write(wrap('{"type":"response.completed","response":{"id":"r"}}'))
        await writer.drain()
        self.done.set()
        writer.close()


def _sse(event: str) -> bytes:
    return f"data: {event}\n\n".encode()


def _frame(event: str) -> bytes:
    return Frame(Opcode.TEXT, event.encode()).serialize(mask=False)


@pytest.mark.parametrize("sockets", [False, True], ids=["sse", "websocket"])
def test_a_hundred_thousand_deltas_into_a_stopped_consumer(sockets: bool) -> None:
    async def run() -> None:
        flood = _Flood()
        server = await asyncio.start_server(flood.serve, "127.0.0.1", 0, limit=1 << 20)
        port = server.sockets[0].getsockname()[1]
        provider = ProviderConfig(base_url=f"http://127.0.0.1:{port}/v1", supports_websockets=sockets, websocket_prewarm=False)
        async with ResponsesClient(provider) as client:
            request = ModelRequest(
                model="m",
                instructions="",
                input=[Message(role="user", content=(InputText(text="x"),))],
                tools=[],
                thread_id="t",
                turn_id="u",
            )
            stream = client.stream(request)
            tracemalloc.start()
            assert isinstance(await anext(stream), ItemAdded)
            before = tracemalloc.get_traced_memory()[0]
            await asyncio.wait_for(flood.stalled.wait(), WAIT_S)
            grown = tracemalloc.get_traced_memory()[0] - before
            tracemalloc.stop()
            # Buffer, one read of the parser, and what the flood itself holds for its socket.
            assert grown < 2 * MAX_EVENTS * 600 + 16 * HIGH_WATER
            assert flood.sent < DELTAS // 2
            received = 0
            async for event in stream:
                if isinstance(event, TextDelta):
                    received += len(event.delta)
            assert received == DELTAS * len(PAD)
            await asyncio.wait_for(flood.done.wait(), WAIT_S)
        server.close()
        await server.wait_closed()

    asyncio.run(run())
