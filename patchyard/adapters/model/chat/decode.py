"""Chunks of a Chat Completions stream to the agent's model events."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from patchyard.adapters.model.chat.body import INPUT, freeform_names
from patchyard.adapters.model.chat.partial import TextArgument
from patchyard.adapters.model.classify import Classifier, read_error
from patchyard.adapters.model.connections.sse import SseEvent
from patchyard.adapters.model.decode import Decoded, count_of, json_objects, without_halves
from patchyard.agent.ports import ItemAdded, ItemDone, ModelEvent, ResponseCompleted, ResponseCreated, TextDelta, ToolInputDelta
from patchyard.protocol.ids import new_id
from patchyard.protocol.model_items import CustomToolCall, FunctionCall, Message, OutputText, TokenUsage

_DONE = b"[DONE]"


@dataclass
class _Call:
    """A call that is being assembled; `name` is empty until it came."""

    call_id: str
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    waiting: str = ""
    """Arguments that came before the name."""
    text: TextArgument | None = None
    """Of a freeform tool: its text, unwrapped while it arrives."""


class ChatDecoder:
    """Decodes one stream: assembles messages and calls. Raises ClassifiedError where the stream says that it failed."""

    def __init__(self, classifier: Classifier, tools: Sequence[Mapping[str, Any]]) -> None:
        self._classifier = classifier
        self._freeform = freeform_names(tools)
        self._message_id = ""
        self._text: list[str] = []
        self._calls: dict[int, _Call] = {}
        self._usage: TokenUsage | None = None
        self._ended: str | None = None
        """Why the model stopped, once it said so."""
        self._over = False
        self.response_id: str | None = None

    def feed(self, raw: Iterable[SseEvent]) -> Iterator[Decoded]:
        """What one read brought. Deltas of one text that follow each other become one."""
        events = list(raw)
        texts: list[str] = []
        size = 0
        for _, chunk, length in json_objects(events):
            text = self._only_text(chunk)
            if text is not None:
                texts.append(text)
                size += length
                continue
            if texts:
                yield Decoded(self._said(texts), size)
                texts, size = [], 0
            for event in self._chunk(chunk):
                yield Decoded(event, length)
        if texts:
            yield Decoded(self._said(texts), size)
        if any(event.data == _DONE for event in events):
            yield from self.end()

    def end(self) -> Iterator[Decoded]:
        """The stream is over: the items are complete if the model said that it stopped."""
        if self._ended is None or self._over:
            return
        self._over = True
        for event in self._finish():
            yield Decoded(event, 0)

    def _only_text(self, chunk: Mapping[str, Any]) -> str | None:
        """The text of a chunk that holds nothing else, once a message is open: nearly all of a stream."""
        choices = chunk.get("choices")
        if not self._message_id or not isinstance(choices, list) or len(choices) != 1 or chunk.get("usage"):
            return None
        choice = choices[0]
        delta = choice.get("delta") if isinstance(choice, Mapping) else None
        if not isinstance(delta, Mapping) or choice.get("finish_reason") or delta.get("tool_calls"):
            return None
        content = delta.get("content")
        return content if isinstance(content, str) and content else None

    def _said(self, texts: list[str]) -> TextDelta:
        text = "".join(texts)
        self._text.append(text)
        return TextDelta(self._message_id, text)

    def _chunk(self, chunk: Mapping[str, Any]) -> Iterator[ModelEvent]:
        if chunk.get("error"):
            raise self._classifier.failed(read_error(chunk["error"]))
        if self.response_id is None:
            self.response_id = str(chunk.get("id") or f"chat_{new_id()}")
            yield ResponseCreated(self.response_id)
        if isinstance(chunk.get("usage"), Mapping):
            self._usage = _usage(chunk["usage"])
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, Mapping) and choice.get("index", 0) == 0:
                yield from self._choice(choice)

    def _choice(self, choice: Mapping[str, Any]) -> Iterator[ModelEvent]:
        delta = choice.get("delta")
        delta = delta if isinstance(delta, Mapping) else {}
        text = delta.get("content") or delta.get("refusal")
        if isinstance(text, str) and text:
            if not self._message_id:
                self._message_id = f"msg_{new_id()}"
                yield ItemAdded(Message(role="assistant", content=(), id=self._message_id))
            yield self._said([text])
        calls = delta.get("tool_calls")
        for place, part in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(part, Mapping):
                yield from self._call_part(place, part)
        reason = choice.get("finish_reason")
        if reason == "length":
            raise self._classifier.incomplete("max_output_tokens")
        if reason == "content_filter":
            raise self._classifier.failed(
                read_error({"code": "content_policy_violation", "message": "the answer was withheld by a content filter"})
            )
        if reason:
            self._ended = str(reason)

    def _call_part(self, place: int, part: Mapping[str, Any]) -> Iterator[ModelEvent]:
        index = part.get("index")
        index = index if isinstance(index, int) else place
        function = part.get("function")
        function = function if isinstance(function, Mapping) else {}
        call = self._calls.get(index)
        if call is None:
            call = self._calls[index] = _Call(without_halves(str(part.get("id") or f"call_{new_id()}")))
        name, arguments = function.get("name"), function.get("arguments")
        more = arguments if isinstance(arguments, str) else "" if arguments is None else json.dumps(arguments)
        if not call.name:
            call.waiting += more
            if not name:
                return
            call.name, more = without_halves(str(name)), call.waiting
            if call.name in self._freeform:
                call.text = TextArgument(INPUT)
            yield ItemAdded(_item(call, ""))
        if more:
            call.arguments.append(more)
            shown = more if call.text is None else call.text.feed(more)
            if shown:
                yield ToolInputDelta(call.call_id, shown)

    def _finish(self) -> Iterator[ModelEvent]:
        if self._message_id:
            content = (OutputText(text=without_halves("".join(self._text))),)
            yield ItemDone(Message(role="assistant", content=content, id=self._message_id))
        for index in sorted(self._calls):
            call = self._calls[index]
            if not call.name:
                raise self._classifier.stream_broken("a tool call has no name")
            yield ItemDone(_item(call, "".join(call.arguments)))
        yield ResponseCompleted(self.response_id or "", self._usage or TokenUsage())


def _item(call: _Call, arguments: str) -> FunctionCall | CustomToolCall:
    if call.text is None:
        return FunctionCall(call_id=call.call_id, name=call.name, arguments=without_halves(arguments), id=call.call_id)
    text = without_halves(_unwrapped(arguments))
    return CustomToolCall(call_id=call.call_id, name=call.name, input=text, id=call.call_id)


def _unwrapped(arguments: str) -> str:
    """The text argument. A model that sent the bare text instead of JSON meant just that."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    text = value.get(INPUT) if isinstance(value, dict) else value
    return text if isinstance(text, str) else arguments


def _usage(value: Mapping[str, Any]) -> TokenUsage:
    def count(source: Any, name: str) -> int:
        return count_of(source.get(name)) if isinstance(source, Mapping) else 0

    taken, answered = count(value, "prompt_tokens"), count(value, "completion_tokens")
    return TokenUsage(
        input_tokens=taken,
        cached_input_tokens=count(value.get("prompt_tokens_details"), "cached_tokens"),
        output_tokens=answered,
        reasoning_output_tokens=count(value.get("completion_tokens_details"), "reasoning_tokens"),
        total_tokens=count(value, "total_tokens") or taken + answered,
    )
