"""One sampling request with its retries, and the calls that it brings."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from patchyard.agent.budget import Spend
from patchyard.agent.ports import ModelError, ModelEvent, ModelRequest
from patchyard.agent.prompts import base_instructions
from patchyard.agent.retrying import pause_before_retry
from patchyard.agent.thread import Thread
from patchyard.agent.tools.registry import Registry
from patchyard.agent.tools.runner import CallRunner
from patchyard.protocol.errors import ErrorCode, ErrorInfo

from .stream import ResponseReader


@dataclass(frozen=True)
class StepResult:
    """What came of a step."""

    follow_up: bool
    """The model expects another request."""
    last_message: str | None


class Step:
    """See the module. `run` may raise TurnError, ParkTurn, StopTurn and LeaseLost; `runner` has the open calls then.

    ContextOverflow: the request did not fit, all calls are over.
    """

    def __init__(
        self,
        thread: Thread,
        registry: Registry,
        spend: Spend,
        *,
        turn_id: str,
        number: str,
        output_schema: Mapping[str, Any] | None,
        final: bool = False,
        kind: Literal["turn", "review"] = "turn",
    ) -> None:
        self._thread = thread
        self._registry = registry
        self._spend = spend
        self._turn_id = turn_id
        self._number = number
        """Names the step in spans: segment and step."""
        self._output_schema = output_schema
        self._final = final
        """No tools are offered: only an answer is wanted."""
        self._kind: Literal["turn", "review"] = kind
        self.runner = CallRunner(thread, registry, spend, turn_id)

    async def run(self) -> StepResult:
        """Sample until a response is complete, then wait for its calls."""
        tries = attempt = 1
        while True:
            reader = ResponseReader(self._thread, self._spend, self.runner.start)
            try:
                await self._attempt(attempt, reader)
            except ModelError as error:
                # What a broken stream brought stays: its calls end and are in the next request with their outputs.
                await self.runner.settle()
                await pause_before_retry(self._thread, error, tries)
                self._spend.check(self._thread.ports.clock.now_ms())
                # The request layer may have tried more than once.
                tries, attempt = tries + 1, max(attempt, reader.last_attempt) + 1
                continue
            await self.runner.settle()
            wants_more = reader.completed is not None and reader.completed.end_turn is False
            return StepResult(reader.calls > 0 or wants_more, reader.last_message)

    async def _attempt(self, attempt: int, reader: ResponseReader) -> None:
        thread, settings = self._thread, self._thread.active_settings
        request = replace(
            request_of_turn(
                thread,
                self._registry,
                turn_id=self._turn_id,
                output_schema=self._output_schema,
                kind=self._kind,
                final=self._final,
            ),
            input=thread.history.prompt(),
            attempt=attempt,
        )
        attributes: dict[str, str | int | float | bool] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": settings.model,
            "patchyard.attempt": attempt,
        }
        key = f"{self._turn_id}/{self._number}/{attempt}"
        with thread.ports.telemetry.span(f"chat {settings.model}", key=key, attributes=attributes) as span:
            try:
                async with _closing(thread.ports.model.stream(request)) as events:
                    async for event in events:
                        reader.take(event)
                if reader.completed is None:
                    raise ModelError(ErrorInfo.of(ErrorCode.MODEL_STREAM_FAILED, "The response ended before it was complete."))
            except ModelError as error:
                span.set(**{"error.type": error.code.value})
                raise
            finally:
                reader.close()
            usage = reader.completed.usage
            told: dict[str, str | int] = {
                "gen_ai.response.id": reader.completed.response_id,
                "gen_ai.usage.input_tokens": usage.input_tokens,
                "gen_ai.usage.output_tokens": usage.output_tokens,
                "gen_ai.usage.cache_read.input_tokens": usage.cached_input_tokens,
            }
            span.set(**told)


def request_of_turn(
    thread: Thread,
    registry: Registry,
    *,
    turn_id: str,
    output_schema: Mapping[str, Any] | None,
    kind: Literal["turn", "review"] = "turn",
    final: bool = False,
) -> ModelRequest:
    """What all requests of a turn have in common: a first attempt without input."""
    settings = thread.active_settings
    return ModelRequest(
        model=settings.model,
        instructions=base_instructions(thread.config.family(settings.model)),
        input=(),
        tools=() if final else registry.specs(),
        thread_id=thread.config.thread_id,
        turn_id=turn_id,
        effort=settings.effort,
        output_schema=output_schema,
        window_number=thread.history.window_number,
        kind=kind,
    )


@contextlib.asynccontextmanager
async def _closing(stream: AsyncIterator[ModelEvent]) -> AsyncIterator[AsyncIterator[ModelEvent]]:
    """Close the stream at the end: that cancels the request upstream."""
    try:
        yield stream
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
