"""The model client: one request of the agent, as one or more HTTP attempts."""

import asyncio
import contextlib
import itertools
import random
import ssl
import time
from collections.abc import AsyncGenerator, Callable
from types import TracebackType

from patchyard import __version__
from patchyard.adapters.model.attempt import Attempt, AttemptSpec
from patchyard.adapters.model.body import BodyBuilder
from patchyard.adapters.model.classify import Classifier
from patchyard.adapters.model.config import ProviderConfig
from patchyard.adapters.model.errors import ClassifiedError
from patchyard.adapters.model.transport import ModelTransport
from patchyard.agent.ports import AttemptEnded, Clock, ModelError, ModelEvent, ModelRequest, ResponseCompleted
from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.ids import new_id
from patchyard.protocol.ops import TraceContext

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 20.0
JITTER = 0.25
"""Share of a pause that is random, so that 200 turns do not come back at once."""


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
    """agent.ports.ModelClient over the Responses API (SSE).

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
    ) -> None:
        """`transport` is closed by its owner; without one the client makes its own. `trace` gives the current span."""
        self._config = config
        self._owns_transport = transport is None
        self._transport = transport or ModelTransport()
        self._trace = trace
        self._clock: Clock = clock or _SystemClock()
        self._chance = chance or random.Random()  # noqa: S311 - jitter is no secret
        self._bodies = BodyBuilder()
        self._classifier = Classifier(config)
        self._ending: set[asyncio.Task[None]] = set()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See ModelClient. The numbers of the attempts count on from `request.attempt`."""
        body = self._bodies.build(request, reasoning_summary=self._config.reasoning_summary)
        for tries in itertools.count():
            events = self._attempt(request, body, request.attempt + tries)
            try:
                async with contextlib.aclosing(events):
                    async for event in events:
                        yield event
                return
            except ClassifiedError as problem:
                pause = self._pause(tries, problem)
                if pause is None:
                    raise
            await self._clock.sleep(pause)

    def forget(self, thread_id: str) -> None:
        """Drop what is kept to make a thread's next request cheap. Harmless at any time."""
        self._bodies.forget(thread_id)

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

    async def _attempt(self, request: ModelRequest, body: bytes, number: int) -> AsyncGenerator[ModelEvent, None]:
        """Events of one attempt, its record before the last or before the error."""
        queued_at = self._clock.now_ms()
        spec = self._spec(request, body, number)
        try:
            client = self._transport.client(self._config)
        except (OSError, ssl.SSLError) as problem:
            raise self._classifier.unusable(problem) from problem
        attempt = Attempt(client, self._config, spec, now_ms=self._clock.now_ms, queued_at=queued_at)
        task = asyncio.get_running_loop().create_task(attempt.run(), name=f"model-request-{spec.request_id}")
        try:
            while (event := await attempt.buffer.get()) is not None:
                if isinstance(event, ResponseCompleted):
                    yield AttemptEnded(attempt.record(None))
                yield event
        except ModelError as problem:
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
        if task.done():
            return
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        if not attempt.completed:
            task.cancel()
            await asyncio.wait({task})

    def _spec(self, request: ModelRequest, body: bytes, number: int) -> AttemptSpec:
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
        return AttemptSpec(request_id, request.model, number, len(request.input), headers, body)

    def _pause(self, tries: int, problem: ClassifiedError) -> float | None:
        """Seconds before the next attempt; None: there is none at this layer."""
        if not problem.request_retry or tries >= self._config.request_retries:
            return None
        if problem.retry_after_s is not None:
            if problem.retry_after_s > self._config.max_retry_after_s:
                return None
            # Never earlier than the server said.
            return problem.retry_after_s + self._chance.uniform(0, FIRST_PAUSE_S)
        pause: float = min(FIRST_PAUSE_S * 2**tries, LONGEST_PAUSE_S)
        return pause * self._chance.uniform(1 - JITTER, 1 + JITTER)
