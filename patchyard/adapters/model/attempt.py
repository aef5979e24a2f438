"""What every attempt has, whatever it goes over: its times, its buffer, its record, and the one place where it may fail."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import httpx

from patchyard.adapters.model.buffer import EventBuffer, is_token
from patchyard.adapters.model.classify import Classifier
from patchyard.adapters.model.config import ProviderConfig
from patchyard.adapters.model.connections.sse import EventTooLarge, SseEvent
from patchyard.adapters.model.decode import Decoded
from patchyard.adapters.model.errors import ClassifiedError
from patchyard.agent.ports import RateLimits, ResponseCompleted
from patchyard.protocol.errors import ErrorInfo
from patchyard.protocol.model_items import TokenUsage
from patchyard.protocol.rollout_lines import ModelRequestRecord


@dataclass
class Times:
    """Milliseconds since the epoch, None: not reached."""

    queued_at: int
    sent_at: int | None = None
    first_byte_at: int | None = None
    first_token_at: int | None = None
    completed_at: int | None = None


@dataclass(frozen=True)
class AttemptSpec:
    """What one attempt sends."""

    request_id: str
    model: str
    number: int
    input_items: int
    queued_at: int
    headers: Mapping[str, str]


class StreamDecoder(Protocol):
    """Events of a provider's API to model events. Implementers: decode.Decoder, chat.ChatDecoder."""

    response_id: str | None

    def feed(self, raw: Iterable[SseEvent]) -> Iterator[Decoded]:
        """What these events mean. ClassifiedError where they say that the response failed."""
        ...

    def end(self) -> Iterator[Decoded]:
        """The stream is over: what follows from that."""
        ...


class Attempt(ABC):
    """Runs one attempt and fills a buffer. `run` belongs in a task of its own; `record` is valid once the buffer has ended."""

    transport: ClassVar[Literal["sse", "websocket"]]

    def __init__(self, config: ProviderConfig, spec: AttemptSpec, decoder: StreamDecoder, *, now_ms: Callable[[], int]) -> None:
        self._config, self._spec, self._decoder, self._now_ms = config, spec, decoder, now_ms
        self._classifier = Classifier(config)
        self._times = Times(spec.queued_at)
        self._received = 0
        self.usage: TokenUsage | None = None
        self.limits: RateLimits | None = None
        """What the provider said of its limits."""
        self.buffer = EventBuffer()
        self.completed = False
        """Whether the last event of a good stream was read: then the task only tidies up."""

    async def run(self) -> None:
        """Send and read until the response is complete or has failed; the outcome is in the buffer."""
        try:
            await self._exchange()
        except ClassifiedError as problem:
            self._fail(problem)
        except EventTooLarge:
            self._fail(self._classifier.stream_broken("one event is larger than is sensible"))
        except httpx.TransportError as problem:
            self._fail(self._classifier.transport(problem, began=self._times.first_byte_at is not None))
        except asyncio.CancelledError:
            raise
        except Exception as problem:  # noqa: BLE001 - the consumer must learn of it, or it would wait for ever
            self._fail(problem)

    async def abandoned(self) -> None:  # noqa: B027 - most transports have nothing left to do
        """Called when the attempt is over without a good end, even if `run` never began."""

    def record(self, error: ErrorInfo | None) -> ModelRequestRecord:
        """The attempt as it is kept in the rollout."""
        return ModelRequestRecord(
            request_id=self._spec.request_id,
            response_id=self._decoder.response_id or None,
            model=self._spec.model,
            provider=self._config.name,
            transport=self.transport,
            attempt=self._spec.number,
            queued_at=self._times.queued_at,
            sent_at=self._times.sent_at,
            first_byte_at=self._times.first_byte_at,
            first_token_at=self._times.first_token_at,
            completed_at=self._times.completed_at,
            input_items=self._spec.input_items,
            usage=self.usage,
            cost_usd=self._config.cost(self._spec.model, self.usage),
            error=error,
        )

    @abstractmethod
    async def _exchange(self) -> None:
        """The whole attempt. Ends after `_complete`, or raises."""

    def _fail(self, problem: Exception) -> None:
        if not self.completed:
            self.buffer.finish(problem)

    def _sent(self) -> None:
        self._times.sent_at = self._now_ms()

    def _answered(self, limits: RateLimits | None = None) -> None:
        """The first sign of an answer, with the limits that its headers tell."""
        self._times.first_byte_at = self._now_ms()
        if limits is not None:
            self._limited(limits)
            self.buffer.put(limits, 0)

    def _limited(self, limits: RateLimits) -> None:
        self.limits = limits

    def _count(self, received: int) -> None:
        """ClassifiedError: the response is larger than it may be."""
        self._received += received
        if self._received > self._config.max_response_bytes:
            raise self._classifier.too_much_received()

    def _take(self, decoded: Iterable[Decoded]) -> bool:
        """Put events into the buffer. True: that was the last one of a good stream."""
        for event, size in decoded:
            if self._times.first_token_at is None and is_token(event):
                self._times.first_token_at = self._now_ms()
            if isinstance(event, ResponseCompleted):
                self._complete(event)
                return True
            if isinstance(event, RateLimits):
                self._limited(event)
            self.buffer.put(event, size)
        return False

    def _complete(self, event: ResponseCompleted) -> None:
        self.completed = True
        self.usage = event.usage
        self._times.completed_at = self._now_ms()
        self.buffer.put(event, 0)
        self.buffer.finish()
