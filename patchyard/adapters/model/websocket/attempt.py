"""One attempt over the thread's WebSocket."""

from collections.abc import Callable
from typing import Any

import httpx

from patchyard.adapters.model.attempt import Attempt, AttemptSpec
from patchyard.adapters.model.body import BodyBuilder, dump_items, head_of, join
from patchyard.adapters.model.classify import Classifier
from patchyard.adapters.model.config import ProviderConfig
from patchyard.adapters.model.connections.sse import SseEvent
from patchyard.adapters.model.decode import rate_limits
from patchyard.adapters.model.errors import ClassifiedError, SocketFault
from patchyard.adapters.model.websocket.messages import SocketDecoder, creation
from patchyard.adapters.model.websocket.socket import PROTOCOL_ERRORS, SocketRefused, WebSocket, open_socket
from patchyard.adapters.model.websocket.thread import Known, ThreadSocket
from patchyard.adapters.model.websocket.warmup import Announcement, note_refusal
from patchyard.agent.ports import ItemDone, ModelRequest
from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.model_items import ModelItem

NO_SOCKET = frozenset({400, 404, 405, 406, 415, 501})
"""Answers to an upgrade that mean: not here. Asking again would bring the same."""


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
            socket, fresh, unanswered = await self._thread.take(self._request.window_number, self._connect)
            await socket.send(self._message())
            self._sent()
            await self._read(socket, unanswered)
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

    def _message(self) -> bytes:
        known = self._thread.known
        new = known.new_items(self._head, self._request.input) if known is not None else None
        if known is not None and new is not None:
            self.sent_items = len(new)
            items: bytes | bytearray = dump_items(new)
            head = creation(self._head, self._spec.headers, previous_response_id=known.response_id)
        else:
            self.sent_items = len(self._request.input)
            items = self._bodies.input(self._request)
            head = creation(self._head, self._spec.headers)
        message = join(head, items)
        if len(message) > self._config.max_request_bytes:
            raise self._classifier.too_large(len(message))
        return message

    async def _read(self, socket: WebSocket, unanswered: Announcement | None) -> None:
        limits = rate_limits(socket.headers)
        while not self.completed:
            messages = await socket.receive(self._config.idle_timeout_s)
            if unanswered is not None:
                messages = self._without_answer(unanswered, messages)
            if not messages:
                continue
            if self._times.first_byte_at is None:
                self._answered(limits)
            self._count(sum(map(len, messages)))
            self._take(self._noted(self._decoder.feed([SseEvent(b"", message) for message in messages])))
            if self.buffer.is_full and not self.completed:
                await self.buffer.room()

    def _without_answer(self, unanswered: Announcement, messages: list[bytes]) -> list[bytes]:
        """The request did not wait for the answer to what was told before it, which comes first."""
        if unanswered.response_id is not None:
            return messages
        try:
            return unanswered.rest(messages)
        except ClassifiedError as problem:
            note_refusal(self._thread, problem)
            problem.blame(SocketFault.STALE)
            raise

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
