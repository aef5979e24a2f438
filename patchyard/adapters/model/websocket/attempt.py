"""One attempt over the thread's WebSocket."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from patchyard.adapters.model.attempt import Attempt, AttemptSpec
from patchyard.adapters.model.body import BodyBuilder, dump, dump_items, head_of, join
from patchyard.adapters.model.classify import Classifier
from patchyard.adapters.model.config import ProviderConfig
from patchyard.adapters.model.connections.sse import SseEvent
from patchyard.adapters.model.decode import Decoder, rate_limits
from patchyard.adapters.model.errors import ClassifiedError, SocketFault
from patchyard.adapters.model.websocket.socket import PROTOCOL_ERRORS, SocketRefused, WebSocket, open_socket
from patchyard.adapters.model.websocket.thread import Known, ThreadSocket
from patchyard.agent.ports import ItemDone, ModelRequest, ResponseCompleted
from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.model_items import ModelItem

NO_SOCKET = frozenset({400, 404, 405, 406, 415, 501})
"""Answers to an upgrade that mean: not here. Asking again would bring the same."""
_STALE_CODES = frozenset({"previous_response_not_found", "websocket_connection_limit_reached"})
"""The server forgot what we continue, or the socket reached its greatest age."""


class SocketDecoder(Decoder):
    """The same events as over SSE; errors come as frames with an HTTP status."""

    def __init__(self, classifier: Classifier, model: str) -> None:
        super().__init__(classifier)
        self._model = model

    def _raise_if_failed(self, kind: str, data: Mapping[str, Any]) -> None:
        status = data.get("status_code", data.get("status"))
        if kind != "error" or not isinstance(status, int):
            super()._raise_if_failed(kind, data)
            return
        error, headers = data.get("error"), data.get("headers")
        if isinstance(error, Mapping) and error.get("code") in _STALE_CODES:
            raise self._classifier.stream_broken(str(error["code"])).blame(SocketFault.STALE)
        told = {str(name).lower(): str(value) for name, value in headers.items()} if isinstance(headers, Mapping) else {}
        problem = self._classifier.status(status, told, json.dumps({"error": error}).encode(), model=self._model)
        if self.response_id is not None:
            # The response had begun: what was seen of it is the stream layer's business.
            problem.request_retry = False
        raise problem


class SocketAttempt(Attempt):
    """`response.create`, with only what the server does not know yet, and the answer's events."""

    transport = "websocket"

    def __init__(
        self,
        client: httpx.AsyncClient,
        config: ProviderConfig,
        spec: AttemptSpec,
        request: ModelRequest,
        thread: ThreadSocket,
        bodies: BodyBuilder,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(config, spec, SocketDecoder(Classifier(config), request.model), now_ms=now_ms)
        self._client, self._request, self._thread, self._bodies = client, request, thread, bodies
        self._head = head_of(request, config.reasoning_summary, stream=False)
        self._output: list[ModelItem] = []
        self.sent_items = 0
        """Items that were sent, the others were known."""

    async def _exchange(self) -> None:
        fresh = True
        try:
            socket, fresh = await self._thread.take(self._request.window_number, self._connect)
            if fresh and self._config.websocket_prewarm and self._thread.prewarms:
                await self._prewarm(socket)
            await socket.send(self._message())
            self._sent()
            await self._read(socket)
            self._thread.keep(Known(self._decoder.response_id or "", self._head, [*self._request.input, *self._output]))
        except SocketRefused as problem:
            raise self._refused(problem) from problem
        except PROTOCOL_ERRORS as problem:
            raise self._closed(str(problem)).blame(self._fault(fresh=fresh)) from problem
        except httpx.TransportError as problem:
            began = self._times.first_byte_at is not None
            raise self._classifier.transport(problem, began=began).blame(self._fault(fresh=fresh)) from problem

    async def abandoned(self) -> None:
        """To close the socket is the only way to stop a response."""
        await self._thread.drop()

    async def _connect(self) -> WebSocket:
        return await open_socket(self._client, self._config, self._spec.headers)

    async def _prewarm(self, socket: WebSocket) -> None:
        """Instructions and tools without a question: the answer has an id to go on from, and no output."""
        metadata = dump(self._metadata())
        await socket.send(b"".join((self._create(), b',"generate":false,"client_metadata":', metadata, b',"input":[]}')))
        decoder = SocketDecoder(self._classifier, self._request.model)
        while True:
            messages = await socket.receive(self._config.idle_timeout_s)
            try:
                for event, _ in decoder.feed([SseEvent(b"", message) for message in messages]):
                    if isinstance(event, ResponseCompleted):
                        self._thread.known = Known(event.response_id, self._head, ())
                        return
            except ClassifiedError as problem:
                if problem.code is ErrorCode.MODEL_BAD_REQUEST:
                    # A server that knows no prewarming.
                    self._thread.prewarms = False
                    problem.blame(SocketFault.STALE)
                raise

    def _create(self) -> bytes:
        return b'{"type":"response.create",' + self._head[1:-1]

    def _metadata(self) -> dict[str, str]:
        """What changes with each request and so can't stand in the upgrade's headers."""
        names = ("x-client-request-id", "x-patchyard-window", "x-patchyard-request-kind", "traceparent", "tracestate")
        return {name: self._spec.headers[name] for name in names if name in self._spec.headers}

    def _message(self) -> bytes:
        known, fields = self._thread.known, {"client_metadata": self._metadata()}
        new = known.new_items(self._head, self._request.input) if known is not None else None
        if known is not None and new is not None:
            self.sent_items = len(new)
            items: bytes | bytearray = dump_items(new)
            head = self._create() + b"," + dump({"previous_response_id": known.response_id, **fields})[1:]
        else:
            self.sent_items = len(self._request.input)
            items = self._bodies.input(self._request)
            head = self._create() + b"," + dump(fields)[1:]
        message = join(head, items)
        if len(message) > self._config.max_request_bytes:
            raise self._classifier.too_large(len(message))
        return message

    async def _read(self, socket: WebSocket) -> None:
        limits = rate_limits(socket.headers)
        while not self.completed:
            messages = await socket.receive(self._config.idle_timeout_s)
            if not messages:
                continue
            if self._times.first_byte_at is None:
                self._answered(limits)
            self._count(sum(map(len, messages)))
            self._take(self._noted(self._decoder.feed([SseEvent(b"", message) for message in messages])))
            if self.buffer.is_full and not self.completed:
                await self.buffer.room()

    def _noted(self, decoded: Any) -> Any:
        """Keep the items of the answer: they are part of what the server knows."""
        for one in decoded:
            if isinstance(one.event, ItemDone):
                self._output.append(one.event.item)
            yield one

    def _refused(self, problem: SocketRefused) -> ClassifiedError:
        found = self._classifier.status(problem.status, problem.headers, problem.body, model=self._request.model)
        if problem.status == 426:
            return found.blame(SocketFault.UNSUPPORTED)
        if problem.status in NO_SOCKET:
            return found.blame(SocketFault.MISSING)
        return found.blame(SocketFault.BROKEN) if found.code is ErrorCode.MODEL_OVERLOADED else found

    def _closed(self, reason: str) -> ClassifiedError:
        text = f"the socket was closed before the response was complete ({reason})"
        error = self._classifier.stream_broken(text)
        error.request_retry = self._times.first_byte_at is None
        return error

    def _fault(self, *, fresh: bool) -> SocketFault:
        """A kept socket that ends before a first sign had been idle too long."""
        return SocketFault.BROKEN if fresh or self._times.first_byte_at is not None else SocketFault.STALE
