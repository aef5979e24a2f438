"""One HTTP attempt: send, read, decode, and the record of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from patchyard.adapters.model.buffer import EventBuffer, is_token
from patchyard.adapters.model.classify import Classifier
from patchyard.adapters.model.config import ProviderConfig
from patchyard.adapters.model.decode import Decoder, rate_limits
from patchyard.adapters.model.errors import ClassifiedError
from patchyard.adapters.model.sockets import PacedStream
from patchyard.adapters.model.sse import EventTooLarge, SseParser
from patchyard.agent.ports import ResponseCompleted
from patchyard.protocol.errors import ErrorInfo
from patchyard.protocol.model_items import TokenUsage
from patchyard.protocol.rollout_lines import ModelRequestRecord

ERROR_BODY_BYTES = 64 * 1024
"""Of an error answer: enough for every provider's JSON."""
ERROR_BODY_S = 10.0
DRAIN_S = 1.0
"""After the last event: time for the end of the body, so that the connection can be used again."""


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
    headers: Mapping[str, str]
    body: bytes


class Attempt:
    """Runs one attempt and fills a buffer. `run` belongs in a task of its own; `record` is valid once the buffer has ended."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        config: ProviderConfig,
        spec: AttemptSpec,
        *,
        now_ms: Callable[[], int],
        queued_at: int,
    ) -> None:
        self._client, self._config, self._spec, self._now_ms = client, config, spec, now_ms
        self._classifier = Classifier(config)
        self._decoder = Decoder(self._classifier)
        self._times = Times(queued_at)
        self._usage: TokenUsage | None = None
        self.buffer = EventBuffer()
        self.completed = False
        """Whether the last event of a good stream was read: then the task only ends the body."""

    async def run(self) -> None:
        """Send and read until the response is complete or has failed; the outcome is in the buffer."""
        try:
            await self._exchange()
        except ClassifiedError as problem:
            self.buffer.finish(problem)
        except httpx.TransportError as problem:
            if not self.completed:
                self.buffer.finish(self._classifier.transport(problem, began=self._times.first_byte_at is not None))
        except asyncio.CancelledError:
            raise
        except Exception as problem:  # noqa: BLE001 - the consumer must learn of it, or it would wait for ever
            self.buffer.finish(problem)

    def record(self, error: ErrorInfo | None) -> ModelRequestRecord:
        """The attempt as it is kept in the rollout."""
        return ModelRequestRecord(
            request_id=self._spec.request_id,
            response_id=self._decoder.response_id or None,
            model=self._spec.model,
            provider=self._config.name,
            transport="sse",
            attempt=self._spec.number,
            queued_at=self._times.queued_at,
            sent_at=self._times.sent_at,
            first_byte_at=self._times.first_byte_at,
            first_token_at=self._times.first_token_at,
            completed_at=self._times.completed_at,
            input_items=self._spec.input_items,
            usage=self._usage,
            cost_usd=self._config.cost(self._spec.model, self._usage),
            error=error,
        )

    async def _exchange(self) -> None:
        config = self._config
        timeout = httpx.Timeout(config.idle_timeout_s, connect=config.connect_timeout_s)
        request = self._client.build_request(
            "POST",
            config.responses_url,
            params=config.query or None,
            headers=self._spec.headers,
            content=self._spec.body,
            timeout=timeout,
            extensions={"trace": self._trace},
        )
        response = await self._client.send(request, stream=True)
        try:
            self._times.first_byte_at = self._now_ms()
            await self._response(response)
        finally:
            await response.aclose()

    async def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Httpcore's hook: the connection is there and the request goes out."""
        if event.endswith("send_request_headers.started"):
            self._times.sent_at = self._now_ms()

    async def _response(self, response: httpx.Response) -> None:
        headers = {name.lower(): value for name, value in response.headers.items()}
        kind = headers.get("content-type", "")
        if response.status_code != 200:
            body = await _read_some(response)
            raise self._classifier.status(response.status_code, headers, body, model=self._spec.model)
        if kind.startswith(("text/html", "application/json")):
            raise self._classifier.not_a_stream(kind, await _read_some(response))
        limits = rate_limits(headers)
        if limits is not None:
            self.buffer.put(limits, 0)
        pieces = _pieces(response)
        try:
            await self._read(pieces)
        except EventTooLarge as problem:
            raise self._classifier.stream_broken("one event is larger than is sensible") from problem
        if not self.completed:
            raise self._classifier.stream_ended()
        await _drain(response, pieces)

    async def _read(self, pieces: AsyncIterator[bytes]) -> None:
        parser = SseParser()
        async for piece in pieces:
            for raw in parser.feed(piece):
                event = self._decoder.decode(raw)
                if event is None:
                    continue
                if self._times.first_token_at is None and is_token(event):
                    self._times.first_token_at = self._now_ms()
                if isinstance(event, ResponseCompleted):
                    self._complete(event)
                    return
                self.buffer.put(event, len(raw.data))
            if self.buffer.is_full:
                await self.buffer.room()

    def _complete(self, event: ResponseCompleted) -> None:
        self.completed = True
        self._usage = event.usage
        self._times.completed_at = self._now_ms()
        self.buffer.put(event, 0)
        self.buffer.finish()


def _pieces(response: httpx.Response) -> AsyncIterator[bytes]:
    """The body. We ask for no compression; a gateway that compresses all the same is understood."""
    encoded = response.headers.get("content-encoding", "identity") not in ("", "identity")
    return response.aiter_bytes() if encoded else response.aiter_raw()


async def _drain(response: httpx.Response, pieces: AsyncIterator[bytes]) -> None:
    stream = response.extensions.get("network_stream")
    if isinstance(stream, PacedStream):
        stream.hurry()
    with contextlib.suppress(TimeoutError, httpx.TransportError):
        async with asyncio.timeout(DRAIN_S):
            async for _ in pieces:
                pass


async def _read_some(response: httpx.Response) -> bytes:
    """The start of an error's body; what arrived, when it breaks off."""
    body = bytearray()
    with contextlib.suppress(TimeoutError, httpx.HTTPError):
        async with asyncio.timeout(ERROR_BODY_S):
            async for piece in _pieces(response):
                body += piece
                if len(body) >= ERROR_BODY_BYTES:
                    break
    return bytes(body[:ERROR_BODY_BYTES])
