"""Turns a step into frames: what is sent, and when."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, assert_never

from patchyard.protocol.model_items import TokenUsage
from patchyard.replay import builders
from patchyard.replay.script import CallStep, CustomStep, MessageStep, ReasoningStep, ScriptItem, Step

Ending = Literal["complete", "cut", "hang"]


class Frame(NamedTuple):
    """One event."""

    event: dict[str, Any] | str
    """A text is sent as it is."""
    delay_s: float
    """Wait so long before it."""

    def data(self) -> bytes:
        """The event alone, as a WebSocket carries it."""
        return self.event.encode() if isinstance(self.event, str) else json.dumps(self.event, ensure_ascii=False).encode()

    def sse(self) -> bytes:
        """The event as an SSE frame."""
        if isinstance(self.event, str):
            return f"data: {self.event}\n\n".encode()
        return b"event: %s\ndata: %s\n\n" % (str(self.event.get("type", "message")).encode(), self.data())


@dataclass(frozen=True)
class Performance:
    """A whole response."""

    frames: tuple[Frame, ...]
    ending: Ending
    emitted_calls: tuple[str, ...]
    """Calls that the client has in full once the stream is complete."""
    usage: TokenUsage
    fails: bool

    def response_id(self) -> str:
        """As the client saw it; empty when it did not."""
        found = [frame.event.get("response", {}).get("id") for frame in self.frames if isinstance(frame.event, dict)]
        return next((str(identity) for identity in reversed(found) if identity), "")

    def output(self) -> list[dict[str, Any]]:
        """The items that are complete in it."""
        events = [frame.event for frame in self.frames if isinstance(frame.event, dict)]
        return [event["item"] for event in events if event.get("type") == "response.output_item.done"]


@dataclass(frozen=True)
class Names:
    """Where the ids of a response come from: stable for a thread, unique in it."""

    thread_digest: str
    response: int

    @property
    def response_id(self) -> str:
        """The response's id."""
        return f"resp_{self.thread_digest}_{self.response}"

    def of(self, prefix: str, index: int) -> str:
        """An item's or call's id."""
        return f"{prefix}_{self.thread_digest}_{self.response}_{index}"


def perform(step: Step, names: Names, *, model: str, input_tokens: int, cached_tokens: int) -> Performance:
    """The frames of a step that answers 200."""
    usage = _usage(step, input_tokens, cached_tokens)
    events: Iterable[dict[str, Any] | str]
    if step.events is not None:
        events = step.events
        calls = tuple(_calls_in(step.events))
    else:
        events = _item_events(step, names, model, usage)
        calls = tuple(_call_id(item, names, index) for index, item in enumerate(step.items) if _is_call(item))
    frames = [_frame(event, step) for event in events]
    ending: Ending = "complete"
    if step.cut_after is not None:
        frames, ending = frames[: step.cut_after], "cut"
    elif step.hang_after is not None:
        frames, ending = frames[: step.hang_after], "hang"
    fails = step.error is not None or ending != "complete"
    return Performance(tuple(frames), ending, () if fails else calls, usage, fails)


def _frame(event: dict[str, Any] | str, step: Step) -> Frame:
    is_delta = isinstance(event, dict) and str(event.get("type", "")).endswith(".delta")
    return Frame(event, step.token_delay_ms / 1000 if is_delta else 0)


def _item_events(step: Step, names: Names, model: str, usage: TokenUsage) -> Iterator[dict[str, Any]]:
    yield builders.created(names.response_id, model)
    for index, item in enumerate(step.items):
        yield from _events_of(item, names, index)
    if step.error is not None:
        yield builders.failed(names.response_id, code=step.error.code, message=step.error.message, model=model)
    else:
        yield builders.completed(names.response_id, usage=usage, model=model, end_turn=step.end_turn)


def _events_of(item: ScriptItem, names: Names, index: int) -> Iterator[dict[str, Any]]:
    match item:
        case MessageStep():
            return builders.message_events(names.of("msg", index), item.message, phase=item.phase, index=index)
        case ReasoningStep():
            return builders.reasoning_events(names.of("rs", index), item.reasoning, index=index)
        case CallStep():
            return builders.function_call_events(_call_id(item, names, index), item.call, item.arguments, index=index)
        case CustomStep():
            return builders.custom_call_events(_call_id(item, names, index), item.custom, item.input, index=index)
        case _:
            assert_never(item)


def _is_call(item: ScriptItem) -> bool:
    return isinstance(item, CallStep | CustomStep)


def _call_id(item: ScriptItem, names: Names, index: int) -> str:
    return (item.id if isinstance(item, CallStep | CustomStep) else None) or names.of("call", index)


def _calls_in(events: Iterable[dict[str, Any] | str]) -> Iterator[str]:
    for event in events:
        if isinstance(event, dict) and event.get("type") == "response.output_item.done":
            item = event.get("item", {})
            if item.get("type") in ("function_call", "custom_tool_call"):
                yield str(item.get("call_id"))


def _usage(step: Step, input_tokens: int, cached_tokens: int) -> TokenUsage:
    """What the script says; else about four bytes a token, as a tokenizer would give."""
    written = sum(len(_text_of(item)) for item in step.items) // 4 + 1
    thought = sum(len(item.reasoning) for item in step.items if isinstance(item, ReasoningStep)) // 4
    spec = step.usage
    taken = input_tokens if spec.input_tokens is None else spec.input_tokens
    answered = written if spec.output_tokens is None else spec.output_tokens
    cached = cached_tokens if spec.cached_input_tokens is None else spec.cached_input_tokens
    return TokenUsage(
        input_tokens=taken,
        cached_input_tokens=min(cached, taken),
        output_tokens=answered,
        reasoning_output_tokens=min(thought, answered)
        if spec.reasoning_output_tokens is None
        else spec.reasoning_output_tokens,
        total_tokens=taken + answered,
    )


def _text_of(item: ScriptItem) -> str:
    match item:
        case MessageStep():
            return item.message
        case ReasoningStep():
            return item.reasoning
        case CallStep():
            return item.arguments if isinstance(item.arguments, str) else json.dumps(item.arguments)
        case CustomStep():
            return item.input
        case _:
            assert_never(item)
