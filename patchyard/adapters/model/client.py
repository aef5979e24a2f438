"""The model client: one request of the agent, as one or more attempts."""

import asyncio
import contextlib
import random
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, assert_never

from patchyard import __version__
from patchyard.adapters.model.attempt import Attempt, AttemptSpec
from patchyard.adapters.model.body import BodyBuilder
from patchyard.adapters.model.chat import ChatDecoder, chat_body
from patchyard.adapters.model.classify import Classifier
from patchyard.adapters.model.config import ProviderConfig
from patchyard.adapters.model.connections.transport import ModelTransport
from patchyard.adapters.model.decode import Decoder
from patchyard.adapters.model.errors import ClassifiedError, SocketFault
from patchyard.adapters.model.http_attempt import HttpAttempt
from patchyard.adapters.model.limits import LONGEST_PAUSE_S, Gate, exhausted_for
from patchyard.adapters.model.websocket import SocketAttempt, ThreadSocket, warm
from patchyard.agent.ports import AttemptEnded, Clock, ModelError, ModelEvent, ModelNotice, ModelRequest, ResponseCompleted
from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.ids import new_id
from patchyard.protocol.ops import TraceContext

FIRST_PAUSE_S = 0.2
LONGEST_BACKOFF_S = 20.0
JITTER = 0.25
"""Share of a pause that is random, so that 200 turns do not come back at once."""
BYTES_PER_TOKEN = 4
OUTPUT_TOKENS = 500
"""Of a usual step; what it really was is settled at its end."""


class _SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def _no_trace() -> TraceContext | None:
    return None


class ResponsesClient:
    """agent.ports.ModelClient over the Responses API (WebSocket or SSE), or over Chat Completions.

    This is the request layer: it sends again what failed before a response began. A response that broke off is raised
    as a retryable ModelError; sending it again is up to the stream layer, which knows what became of its calls.
    """

    def __init__(
        self,
        config: ProviderConfig,
        transport: ModelTransport | None = None,
        *,
        trace: Callable[[], TraceContext | None] = _no_trace,
        clock: Clock | None = None,
        chance: random.Random | None = None,
        gate: Gate | None = None,
    ) -> None:
        """`transport` is closed by its owner; without one the client makes its own. `trace` gives the current span."""
        self._config = config
        self._owns_transport = transport is None
        self._transport = transport or ModelTransport()
        self._trace = trace
        self._clock: Clock = clock or _SystemClock()
        self._chance = chance or random.Random()  # noqa: S311 - jitter is no secret
        self._gate = gate
        self._bodies = BodyBuilder()
        self._classifier = Classifier(config)
        self._ending: set[asyncio.Task[None]] = set()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See ModelClient. The numbers of the attempts count on from `request.attempt`."""
        tries, number = 0, request.attempt
        while True:
            thread = self._socket(request)
            try:
                async with contextlib.aclosing(self._attempt(request, number, thread)) as events:
                    async for event in events:
                        yield event
                return
            except ClassifiedError as problem:
                again = self._after_socket(thread, problem) if thread is not None else None
                if again is not None:
                    if again.notice:
                        yield ModelNotice(again.notice)
                    if not again.at_once:
                        # The stream layer has its own view of a response that had begun.
                        raise
                    tries, number = 0, number + again.counted
                    continue
                pause = self._pause(tries, problem)
                if pause is None:
                    raise
            await self._clock.sleep(pause)
            tries, number = tries + 1, number + 1

    def prewarm(self, request: ModelRequest) -> None:
        """See ModelClient. Only a WebSocket can be got ready; belongs to the transport, so that `aclose` does not end it."""
        config, thread = self._config, self._socket(request)
        if thread is None or thread.is_open or not config.websocket_prewarm:
            return
        try:
            client = self._transport.client(config, sockets=True)
        except (OSError, ssl.SSLError):
            # The request says what is wrong.
            return
        headers = dict(self._spec(request, request.attempt, self._clock.now_ms()).headers)
        warm(thread, self._transport.sockets, client, config, headers, request)

    def forget(self, thread_id: str) -> None:
        """Drop what is kept to make a thread's next request cheap, its socket included. Harmless at any time."""
        self._bodies.forget(thread_id)
        self._in_background(self._transport.sockets.forget(thread_id))

    async def aclose(self) -> None:
        """Let go of everything. Twice is harmless."""
        for task in tuple(self._ending):
            task.cancel()
        if self._ending:
            await asyncio.wait(tuple(self._ending))
        if self._owns_transport:
            await self._transport.aclose()

    async def __aenter__(self) -> "ResponsesClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _attempt(
        self, request: ModelRequest, number: int, thread: ThreadSocket | None
    ) -> AsyncGenerator[ModelEvent, None]:
        """Events of one attempt, its record before the last or before the error."""
        queued_at = self._clock.now_ms()
        permit = await self._enter(request)
        attempt: Attempt | None = None
        problem: ModelError | None = None
        try:
            attempt = await self._make(request, number, queued_at, thread)
            async with contextlib.aclosing(self._events(attempt)) as events:
                async for event in events:
                    yield event
        except ModelError as error:
            problem = error
            raise
        finally:
            self._left(permit, attempt, problem)

    async def _events(self, attempt: Attempt) -> AsyncGenerator[ModelEvent, None]:
        task = asyncio.get_running_loop().create_task(attempt.run(), name="model-request")
        try:
            while (event := await attempt.buffer.get()) is not None:
                if isinstance(event, ResponseCompleted):
                    yield AttemptEnded(attempt.record(None))
                yield event
        except ModelError as problem:
            if not isinstance(problem, ClassifiedError) or problem.fault not in (SocketFault.UNSUPPORTED, SocketFault.STALE):
                yield AttemptEnded(attempt.record(problem.info))
            raise
        except Exception as problem:
            info = ErrorInfo.of(
                ErrorCode.INTERNAL, self._config.redact(f"the model client failed: {type(problem).__name__}: {problem}")
            )
            yield AttemptEnded(attempt.record(info))
            raise ClassifiedError(info) from problem
        finally:
            await self._end(task, attempt)

    async def _end(self, task: asyncio.Task[None], attempt: Attempt) -> None:
        """Cancel the request; a complete one may read the end of its body, which keeps the connection."""
        if not task.done():
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            if not attempt.completed:
                task.cancel()
                await asyncio.wait({task})
        if not attempt.completed:
            await attempt.abandoned()

    async def _make(self, request: ModelRequest, number: int, queued_at: int, thread: ThreadSocket | None) -> Attempt:
        """The attempt, not started yet. ClassifiedError: the request can't be sent."""
        config, now_ms = self._config, self._clock.now_ms
        spec = self._spec(request, number, queued_at)
        try:
            if thread is not None:
                socket_client = self._transport.client(config, sockets=True)
                await self._transport.sockets.make_room(thread)
                if thread.claim():
                    return SocketAttempt(socket_client, config, spec, request, thread, self._bodies, now_ms=now_ms)
            client = self._transport.client(config)
        except (OSError, ssl.SSLError) as problem:
            raise self._classifier.unusable(problem) from problem
        match config.wire_api:
            case "responses":
                decoder: Decoder | ChatDecoder = Decoder(self._classifier)
                body = self._bodies.build(request, reasoning_summary=config.reasoning_summary)
            case "chat":
                decoder = ChatDecoder(self._classifier, request.tools)
                body = chat_body(request)
            case _:
                assert_never(config.wire_api)
        if len(body) > config.max_request_bytes:
            raise self._classifier.too_large(len(body))
        return HttpAttempt(client, config, spec, decoder, body, now_ms=now_ms)

    # --- limits

    async def _enter(self, request: ModelRequest) -> str | None:
        """Wait until the provider may be asked."""
        if self._gate is None:
            return None
        limits = self._config.limits
        tokens = len(self._bodies.input(request)) // BYTES_PER_TOKEN + OUTPUT_TOKENS
        return await self._gate.enter(
            self._config.name,
            tokens=tokens,
            concurrency=limits.concurrency,
            requests_per_minute=limits.requests_per_minute,
            tokens_per_minute=limits.tokens_per_minute,
        )

    def _left(self, permit: str | None, attempt: Attempt | None, problem: ModelError | None) -> None:
        """Give the permit back, and tell the others what the provider said. In the background: nobody waits for it."""
        if self._gate is None or permit is None:
            return
        usage = attempt.usage if attempt is not None else None
        self._in_background(self._gate.leave(self._config.name, permit, tokens=usage.total_tokens if usage else None))
        pause = exhausted_for(attempt.limits.values) if attempt is not None and attempt.limits is not None else None
        if problem is not None and problem.code is ErrorCode.MODEL_RATE_LIMITED and problem.retry_after_s is not None:
            pause = max(pause or 0.0, min(problem.retry_after_s, LONGEST_PAUSE_S))
        if pause:
            self._in_background(self._gate.pause(self._config.name, pause))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    # --- one attempt and the next

    def _socket(self, request: ModelRequest) -> ThreadSocket | None:
        """The thread's socket, where the provider has sockets and the thread has not given them up."""
        if not self._config.supports_websockets or not self._transport.sockets.supports(self._config.name):
            return None
        thread = self._transport.sockets.of(self._config.name, request.thread_id)
        return None if thread.in_use or thread.off else thread

    def _after_socket(self, thread: ThreadSocket, problem: ClassifiedError) -> "_Next | None":
        """What a fault of the socket changes. None: nothing, the usual rules for failures hold."""
        match problem.fault:
            case None:
                return None
            case SocketFault.STALE if thread.stale():
                return _Next(at_once=True)
            case SocketFault.UNSUPPORTED:
                thread.off = True
                self._transport.sockets.unsupported(self._config.name)
                return _Next(at_once=True)
            case SocketFault.STALE | SocketFault.BROKEN if not thread.failed(self._config.websocket_retries):
                return None
            case SocketFault.MISSING | SocketFault.BROKEN | SocketFault.STALE:
                thread.off = True
                notice = f"{self._config.name} can't be reached over a WebSocket, this thread goes on over HTTPS: {problem}"
                return _Next(at_once=problem.request_retry or problem.fault is SocketFault.MISSING, counted=1, notice=notice)
            case _:
                assert_never(problem.fault)

    def _spec(self, request: ModelRequest, number: int, queued_at: int) -> AttemptSpec:
        request_id = new_id()
        headers = {
            "accept": "text/event-stream",
            "accept-encoding": "identity",
            "content-type": "application/json",
            "user-agent": f"patchyard/{__version__}",
            "session-id": request.thread_id,
            "thread-id": request.thread_id,
            "x-client-request-id": request_id,
            "x-patchyard-window": f"{request.thread_id}:{request.window_number}",
            "x-patchyard-request-kind": request.kind,
        }
        context = self._trace()
        if context is not None:
            headers["traceparent"] = context.traceparent
            if context.tracestate:
                headers["tracestate"] = context.tracestate
        headers |= self._config.auth_headers()
        return AttemptSpec(request_id, request.model, number, len(request.input), queued_at, headers)

    def _pause(self, tries: int, problem: ClassifiedError) -> float | None:
        """Seconds before the next attempt; None: there is none at this layer."""
        if not problem.request_retry or tries >= self._config.request_retries:
            return None
        if problem.retry_after_s is not None:
            if problem.retry_after_s > self._config.max_retry_after_s:
                return None
            # Never earlier than the server said.
            return problem.retry_after_s + self._chance.uniform(0, FIRST_PAUSE_S)
        pause: float = min(FIRST_PAUSE_S * 2**tries, LONGEST_BACKOFF_S)
        return pause * self._chance.uniform(1 - JITTER, 1 + JITTER)


@dataclass(frozen=True)
class _Next:
    """How it goes on after a fault of the socket."""

    at_once: bool
    counted: int = 0
    """How many attempts the failed one counts for."""
    notice: str | None = None
