"""A model request whose answer is not shown but becomes the beginning of a new window."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from patchyard.agent.accounts import book_attempt, book_response
from patchyard.agent.budget import Spend
from patchyard.agent.context import tokens
from patchyard.agent.errors import ContextOverflow
from patchyard.agent.ports import AttemptEnded, ItemDone, ModelError, ModelRequest, RateLimits, ResponseCompleted
from patchyard.agent.prompts import base_instructions
from patchyard.agent.retrying import pause_before_retry, too_long
from patchyard.agent.thread import Thread
from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.model_items import Message, ModelItem, OutputText

from .leaving_out import with_less

_FIRST_SHARE = 10
"""Part of the input that is left out when it does not fit: a tenth, then twice as much each time."""


@dataclass(frozen=True)
class Answer:
    """All items of a response."""

    items: tuple[ModelItem, ...]

    @property
    def text(self) -> str:
        """What the messages say."""
        messages = (item for item in self.items if isinstance(item, Message))
        return "\n".join(p.text for m in messages for p in m.content if isinstance(p, OutputText)).strip()


class _Read(NamedTuple):
    completed: ResponseCompleted
    answer: Answer


@dataclass
class CompactionRequest:
    """Sends the window with one more item. `key` names the request in spans."""

    thread: Thread
    spend: Spend
    turn_id: str
    key: str
    model: str
    tools: Sequence[Mapping[str, Any]] = ()
    _items: list[ModelItem] = field(default_factory=list)
    _ended: int = 0
    """Number of the newest attempt that ended."""

    async def send(self, last: ModelItem) -> Answer:
        """The answer. TurnError when there is none to be had, ParkTurn when the provider names a long wait.

        When the input does not fit, its oldest items are left out.
        """
        self._items = list(self.thread.history.prompt())
        tries, share = 1, 0
        while True:
            attempt = self._ended + 1
            try:
                return await self._attempt(attempt, last)
            except ModelError as error:
                try:
                    await pause_before_retry(self.thread, error, tries)
                    tries, self._ended = tries + 1, max(attempt, self._ended)
                except ContextOverflow:
                    share = share * 2 or max(1, tokens_of(self._items) // _FIRST_SHARE)
                    self._items = with_less(self._items, share)
                    if not self._items:
                        raise too_long() from error
                    tries, self._ended = 1, 0
            self.spend.check(self.thread.ports.clock.now_ms())

    async def _attempt(self, attempt: int, last: ModelItem) -> Answer:
        thread = self.thread
        request = ModelRequest(
            model=self.model,
            instructions=base_instructions(thread.config.family(self.model)),
            input=(*self._items, last),
            tools=self.tools,
            thread_id=thread.config.thread_id,
            turn_id=self.turn_id,
            parallel_tool_calls=False,
            effort=thread.active_settings.effort,
            window_number=thread.history.window_number,
            kind="compaction",
            attempt=attempt,
        )
        attributes: dict[str, str | int | float | bool] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": self.model,
            "patchyard.request.kind": "compaction",
            "patchyard.attempt": attempt,
        }
        key = f"{self.turn_id}/{self.key}/{len(self._items)}/{attempt}"
        with thread.ports.telemetry.span(f"chat {self.model}", key=key, attributes=attributes) as span:
            try:
                completed, answer = await self._read(request)
            except ModelError as error:
                span.set(**{"error.type": error.code.value})
                raise
            usage = completed.usage
            told: dict[str, str | int] = {
                "gen_ai.response.id": completed.response_id,
                "gen_ai.usage.input_tokens": usage.input_tokens,
                "gen_ai.usage.output_tokens": usage.output_tokens,
                "gen_ai.usage.cache_read.input_tokens": usage.cached_input_tokens,
            }
            span.set(**told)
        return answer

    async def _read(self, request: ModelRequest) -> _Read:
        items: list[ModelItem] = []
        completed: ResponseCompleted | None = None
        limits: Mapping[str, Any] | None = None
        stream = self.thread.ports.model.stream(request)
        async with contextlib.AsyncExitStack() as stack:
            if (close := getattr(stream, "aclose", None)) is not None:
                stack.push_async_callback(close)
            async for event in stream:
                match event:
                    case ItemDone():
                        items.append(event.item)
                    case RateLimits():
                        limits = event.values
                    case AttemptEnded():
                        self._ended = event.record.attempt
                        book_attempt(self.thread, self.spend, event.record)
                    case ResponseCompleted():
                        completed = event
                        book_response(self.thread, self.spend, event, model=request.model, rate_limits=limits)
                    case _:
                        pass
        if completed is None:
            raise ModelError(ErrorInfo.of(ErrorCode.MODEL_STREAM_FAILED, "The response ended before it was complete."))
        return _Read(completed, Answer(tuple(items)))


def tokens_of(items: Sequence[ModelItem]) -> int:
    """Estimate for all of them."""
    return sum(tokens.of_item(item) for item in items)
