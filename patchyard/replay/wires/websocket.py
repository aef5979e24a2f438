"""Responses over a WebSocket. The server keeps the newest response of a socket and joins it with what is new."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, assert_never

from websockets.exceptions import WebSocketException
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import Protocol, Side, State

from patchyard.replay import builders
from patchyard.replay.connection import MAX_BODY_BYTES, ClientClosed, HttpConnection
from patchyard.replay.conversation import Conversation, Exchange
from patchyard.replay.player import Performance
from patchyard.replay.reading import ModelCall, body_of, error_body, items_of, malformed, read_call
from patchyard.replay.script import ErrorSpec, Step, StepSource
from patchyard.replay.wires.sse import exhausted

Json = dict[str, Any]


class ServerSocket:
    """Server side of an upgraded connection. Sending and receiving raise ClientClosed at its end."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection
        self._protocol = Protocol(Side.SERVER, max_size=MAX_BODY_BYTES)
        self._parts: list[bytes] = []
        self._messages: list[bytes] = []

    async def receive(self) -> bytes:
        """The next message."""
        while not self._messages:
            data = await self._connection.read_raw()
            if not data or self._protocol.state is not State.OPEN:
                raise ClientClosed
            self._protocol.receive_data(data)
            self._collect()
            await self._flush()
        return self._messages.pop(0)

    def give_back(self, message: bytes) -> None:
        """To be received again."""
        self._messages.insert(0, message)

    async def send(self, *texts: bytes) -> None:
        """Send messages in one write."""
        if self._protocol.state is not State.OPEN:
            raise ClientClosed
        for text in texts:
            self._protocol.send_text(text)
        await self._flush()

    async def close(self, code: int = CloseCode.NORMAL_CLOSURE, reason: str = "") -> None:
        """Say good-bye."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(code, reason)
            await self._flush()

    def _collect(self) -> None:
        for event in self._protocol.events_received():
            if isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                self._parts.append(bytes(event.data))
                if event.fin:
                    self._messages.append(b"".join(self._parts))
                    self._parts = []

    async def _flush(self) -> None:
        await self._connection.write_raw(b"".join(self._protocol.data_to_send()))


class _Newest(NamedTuple):
    response_id: str
    items: list[Json]


@dataclass
class _State:
    """Of one socket."""

    newest: _Newest | None = None
    prewarmed: set[str] = field(default_factory=set)


async def serve_socket(
    connection: HttpConnection,
    headers: Mapping[str, str],
    conversation: Conversation,
    *,
    source: Callable[[], StepSource],
    next_number: Callable[[], int],
) -> None:
    """Answer requests until the client goes. ClientClosed at the end."""
    socket, state = ServerSocket(connection), _State()
    try:
        while True:
            message = await socket.receive()
            body = body_of(message)
            if body is None or body.get("type") != "response.create":
                await _error(socket, 400, error_body("invalid_request_error", "send JSON with type response.create"))
                continue
            told = {**headers, **_metadata(body)}
            items = _joined(state, body)
            if items is None:
                detail = f"Previous response with id '{body.get('previous_response_id')}' not found."
                await _error(socket, 400, error_body("previous_response_not_found", detail))
                continue
            if body.get("generate") is False:
                conversation.prewarms += 1
                await _prewarm(socket, state, body, items)
                continue
            new = len(items_of(body))
            call = read_call(next_number(), told, {**body, "input": items}, len(message), items=items, wire="websocket")
            problems = malformed({**body, "input": items, "stream": True})
            exchange = conversation.begin(call, {**body, "input": items}, told, source(), problems=problems)
            exchange.entry.new_items = new
            await _Answer(socket, state, exchange, conversation).give()
    except WebSocketException as problem:
        raise ClientClosed from problem


def _metadata(body: Json) -> dict[str, str]:
    """What a client over HTTP says in headers."""
    metadata = body.get("client_metadata")
    return {str(name).lower(): str(value) for name, value in metadata.items()} if isinstance(metadata, dict) else {}


def _joined(state: _State, body: Json) -> list[Json] | None:
    """The whole history of a request; None when it goes on from something that is not there."""
    previous = body.get("previous_response_id")
    if previous is None:
        return items_of(body)
    if state.newest is None or state.newest.response_id != previous:
        return None
    return [*state.newest.items, *items_of(body)]


async def _prewarm(socket: ServerSocket, state: _State, body: Json, items: list[Json]) -> None:
    """Nothing is generated: the answer has an id to go on from."""
    response_id, model = f"resp_warm_{len(state.prewarmed)}", str(body.get("model", ""))
    state.prewarmed.add(response_id)
    state.newest = _Newest(response_id, items)
    events = builders.created(response_id, model), builders.completed(response_id, model=model)
    await socket.send(*(json.dumps(event).encode() for event in events))


async def _error(socket: ServerSocket, status: int, body: Json, headers: Mapping[str, str] | None = None) -> None:
    frame = {"type": "error", "status": status, **body, **({"headers": dict(headers)} if headers else {})}
    await socket.send(json.dumps(frame).encode())


class _Answer:
    """The answer to one request."""

    def __init__(self, socket: ServerSocket, state: _State, exchange: Exchange, conversation: Conversation) -> None:
        self._socket, self._state, self._exchange, self._conversation = socket, state, exchange, conversation

    async def give(self) -> None:
        """Refuse, fail or play, as the script says. ClientClosed when the script cuts the connection."""
        step, entry = self._exchange.step, self._exchange.entry
        if step is None:
            entry.status, entry.outcome = 400, "refused"
            await _error(self._socket, 400, error_body("script_exhausted", exhausted(self._exchange)))
            return
        if step.error is not None and step.error.status is not None:
            await asyncio.sleep(step.delay_ms / 1000)
            await self._fail(step.error, step.headers)
            return
        await self._while_there(self._play(step))

    async def _fail(self, error: ErrorSpec, more: Mapping[str, str]) -> None:
        assert error.status is not None  # noqa: S101 - the caller looked
        entry = self._exchange.entry
        entry.status, entry.outcome = error.status, "error"
        headers = dict(more) if error.retry_after is None else {**more, "retry-after": f"{error.retry_after:g}"}
        # As the API does: what the failed request went on from is forgotten.
        self._state.newest = None
        await _error(self._socket, error.status, error_body(error.code, error.message, error.type), headers)

    async def _while_there(self, work: Any) -> None:
        """Stop it when the client goes. The client has nothing to say meanwhile."""
        playing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(self._socket.receive())
        try:
            await asyncio.wait({playing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not playing.done():
                leaving.result()
                raise ClientClosed
        finally:
            for task in (playing, leaving):
                task.cancel()
            await asyncio.wait({playing, leaving})
            if not leaving.cancelled() and leaving.exception() is None:
                # A fast client saw the end and asks again already.
                self._socket.give_back(leaving.result())
        playing.result()

    async def _play(self, step: Step) -> None:
        performance = self._exchange.perform(step)
        if step.delay_ms:
            await asyncio.sleep(step.delay_ms / 1000)
        waiting: list[bytes] = []
        for frame in performance.frames:
            if frame.delay_s:
                await self._socket.send(*waiting)
                waiting.clear()
                await asyncio.sleep(frame.delay_s)
            waiting.append(frame.data())
            self._exchange.entry.events += 1
        if performance.ending != "hang":
            self._ended(performance, self._exchange.call)
        await self._socket.send(*waiting)
        match performance.ending:
            case "complete":
                return
            case "cut":
                raise ClientClosed
            case "hang":
                await asyncio.Event().wait()
            case _:
                assert_never(performance.ending)

    def _ended(self, performance: Performance, call: ModelCall) -> None:
        self._exchange.ended(performance)
        self._state.newest = None
        if performance.fails:
            return
        output = performance.output()
        self._state.newest = _Newest(performance.response_id(), [*call.items, *output])
        self._conversation.remember_output(call.thread, len(call.items), output)
