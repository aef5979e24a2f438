"""A model that follows a script and checks every request. Fails on the unexpected and on the unused."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from patchyard.agent.ports import AttemptEnded, ModelError, ModelEvent, ModelRequest, ResponseCompleted
from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.model_items import CustomToolCall, CustomToolCallOutput, FunctionCall, FunctionCallOutput, ModelItem
from patchyard.protocol.rollout_lines import ModelRequestRecord

from .clock import FakeClock


@dataclass(frozen=True)
class Pause:
    """Silence, in seconds of the clock."""

    seconds: float


@dataclass(frozen=True)
class Hold:
    """Silence until the test sets the event. `reached` is set when the stream is there."""

    until: asyncio.Event
    reached: asyncio.Event


@dataclass(frozen=True)
class Fail:
    """The request fails with this error."""

    code: ErrorCode
    message: str = "scripted failure"
    retry_after_s: float | None = None


@dataclass(frozen=True)
class Cut:
    """The stream ends here, without an error and without ResponseCompleted."""


ScriptStep = Sequence[ModelEvent | Pause | Hold | Fail | Cut]


class ScriptedModel:
    """ModelClient double: one entry of `steps` a request. `price`: US dollars a token, None: not known."""

    def __init__(self, clock: FakeClock, steps: Sequence[ScriptStep], *, price: float | None = None) -> None:
        self.requests: list[ModelRequest] = []
        self.prewarmed: list[ModelRequest] = []
        self.closed_early = 0
        """Streams that the caller left before their end."""
        self._clock = clock
        self._price = price
        self._steps = list(steps)

    def prewarm(self, request: ModelRequest) -> None:
        """See ModelClient."""
        self.prewarmed.append(request)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """See ModelClient."""
        check_pairing(request.input)
        before = next((r for r in reversed(self.requests) if r.kind != "compaction"), None)
        if request.kind != "compaction" and before is not None and before.window_number == request.window_number:
            check_extends(before.input, request.input)
        self.requests.append(request)
        if not self._steps:
            raise AssertionError(f"unexpected request {len(self.requests)}; last input: {request.input[-1]!r}")
        finished = False
        try:
            for event in self._steps.pop(0):
                match event:
                    case Pause():
                        await self._clock.sleep(event.seconds)
                    case Hold():
                        event.reached.set()
                        await event.until.wait()
                    case Fail():
                        finished = True
                        info = ErrorInfo.of(event.code, event.message)
                        yield AttemptEnded(self._record(request, None, info))
                        raise ModelError(info, retry_after_s=event.retry_after_s)
                    case Cut():
                        break
                    case ResponseCompleted():
                        yield AttemptEnded(self._record(request, event, None))
                        yield event
                    case _:
                        await asyncio.sleep(0)
                        yield event
            finished = True
        finally:
            self.closed_early += not finished

    def _record(self, request: ModelRequest, done: ResponseCompleted | None, error: ErrorInfo | None) -> ModelRequestRecord:
        now = self._clock.now_ms()
        return ModelRequestRecord(
            request_id=f"req_{len(self.requests)}",
            response_id=done.response_id if done else None,
            model=request.model,
            provider="scripted",
            transport="sse",
            attempt=request.attempt,
            queued_at=now,
            sent_at=now,
            completed_at=now if done else None,
            input_items=len(request.input),
            usage=done.usage if done else None,
            cost_usd=self._price * done.usage.total_tokens if done and self._price is not None else None,
            error=error,
        )

    def assert_done(self) -> None:
        """Every step was asked for."""
        if self._steps:
            raise AssertionError(f"{len(self._steps)} scripted responses were never asked for")

    def outputs(self, index: int = -1) -> dict[str, Any]:
        """Outputs of calls in a request's input, by call id."""
        found = self.requests[index].input
        return {i.call_id: i.output for i in found if isinstance(i, FunctionCallOutput | CustomToolCallOutput)}


def check_extends(before: Sequence[ModelItem], now: Sequence[ModelItem]) -> None:
    """AssertionError when the input rewrites what an earlier request of the window sent."""
    if list(now[: len(before)]) != list(before):
        index = next((i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), min(len(before), len(now)))
        was = before[index] if index < len(before) else "nothing"
        new = now[index] if index < len(now) else "nothing"
        raise AssertionError(f"the input is not append-only: item {index} was {was!r}, is {new!r}")


def check_pairing(items: Sequence[ModelItem]) -> None:
    """AssertionError when a call has no output, or an output no call before it."""
    open_calls: list[str] = []
    for item in items:
        if isinstance(item, FunctionCall | CustomToolCall):
            open_calls.append(item.call_id)
        elif isinstance(item, FunctionCallOutput | CustomToolCallOutput):
            if item.call_id not in open_calls:
                raise AssertionError(f"output without a call: {item.call_id}")
            open_calls.remove(item.call_id)
    if open_calls:
        raise AssertionError(f"calls without output: {open_calls}")
