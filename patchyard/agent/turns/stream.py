"""From a model's events to items: what is shown while it arrives, what is recorded when it is complete."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, assert_never

from patchyard.agent.accounts import book_attempt, book_response
from patchyard.agent.budget import Spend
from patchyard.agent.context.history import Call
from patchyard.agent.ports import (
    AttemptEnded,
    ItemAdded,
    ItemDone,
    ModelEvent,
    ModelNotice,
    RateLimits,
    ReasoningSummaryDelta,
    ResponseCompleted,
    ResponseCreated,
    TextDelta,
    ToolInputDelta,
)
from patchyard.agent.redact import StreamRedactor
from patchyard.agent.thread import Thread
from patchyard.agent.tools.patch_progress import PatchTyping
from patchyard.protocol.events import (
    AgentMessageDelta,
    ItemCompleted,
    ItemStarted,
    PatchProgress,
    ReasoningDelta,
    ToolCallInputDelta,
    Warning_,
)
from patchyard.protocol.ids import new_id
from patchyard.protocol.items import AgentMessageItem, ItemStatus, ReasoningItem
from patchyard.protocol.model_items import FunctionCall, Message, ModelItem, OutputText, Reasoning, Refusal

_Kind = Literal["message", "reasoning"]


@dataclass
class _Open:
    """A text that is still arriving."""

    kind: _Kind
    id: str
    stream: StreamRedactor
    parts: list[str] = field(default_factory=list)
    summary_index: int = 0


@dataclass
class _Typing:
    """A call that the model is still typing."""

    call_id: str
    name: str
    stream: StreamRedactor
    patch: PatchTyping | None


class ResponseReader:
    """Takes the events of one attempt. `start_call` is called with each complete call, after it was posted."""

    def __init__(self, thread: Thread, spend: Spend, start_call: Callable[[Call], None]) -> None:
        self._thread = thread
        self._journal = thread.journal
        self._spend = spend
        self._start_call = start_call
        self._open: dict[str, _Open] = {}
        self._typing: dict[str, _Typing] = {}
        self._rate_limits: dict[str, Any] | None = None
        self.calls = 0
        self.last_attempt = 0
        """Number of the newest attempt that ended."""
        self.last_message: str | None = None
        self.completed: ResponseCompleted | None = None

    def take(self, event: ModelEvent) -> None:
        """Handle one event. Posts records; the caller flushes."""
        match event:
            case TextDelta():
                self._delta("message", event.item_id, event.delta)
            case ReasoningSummaryDelta():
                self._reasoning_delta(event)
            case ToolInputDelta():
                self._input_delta(event)
            case ItemAdded():
                self._added(event.item)
            case ItemDone():
                self._done(event.item)
            case RateLimits():
                self._rate_limits = dict(event.values)
            case ModelNotice():
                self._journal.post(Warning_(message=event.message))
            case AttemptEnded():
                self.last_attempt = event.record.attempt
                book_attempt(self._thread, self._spend, event.record)
            case ResponseCompleted():
                self._complete(event)
            case ResponseCreated():
                pass
            case _:
                assert_never(event)

    def close(self) -> None:
        """The attempt is over: texts that did not finish are closed as interrupted, with what came of them."""
        for text in list(self._open.values()):
            self._show(text, text.stream.end())
            self._close_text(text, "".join(text.parts), ItemStatus.INTERRUPTED)

    def _added(self, item: ModelItem) -> None:
        match item:
            case Message(role="assistant"):
                self._open_text("message", item.id)
            case Reasoning():
                self._open_text("reasoning", item.id)
            case _ if isinstance(item, Call):
                self._thread.ports.sandbox.prepare()
                patch = PatchTyping(json_arguments=isinstance(item, FunctionCall)) if item.name == "apply_patch" else None
                typing = _Typing(item.call_id, item.name, self._thread.redactor.stream(), patch)
                self._typing[item.id or item.call_id] = typing
            case _:
                pass

    def _done(self, item: ModelItem) -> None:
        match item:
            case Message(role="assistant"):
                self.last_message = _text_of(item)
                self._finish_text("message", item, self.last_message)
            case Reasoning():
                self._finish_text("reasoning", item, "\n\n".join(part.text for part in item.summary))
            case _ if isinstance(item, Call):
                if (typing := self._typing.pop(item.id or item.call_id, None)) is not None:
                    self._show_input(typing, typing.stream.end())
                self.calls += 1
                self._journal.post(item)
                self._start_call(item)
            case _:
                self._journal.post(item)

    def _finish_text(self, kind: _Kind, item: Message | Reasoning, final: str) -> None:
        text = self._find(kind, item.id) or self._open_text(kind, item.id)
        self._show(text, text.stream.end())
        self._journal.post(item)
        self._close_text(text, final, ItemStatus.COMPLETED, phase=item.phase if isinstance(item, Message) else None)

    def _complete(self, event: ResponseCompleted) -> None:
        thread = self._thread
        self.completed = event
        thread.answering_model = thread.active_settings.model
        thread.history.response_counted(event.usage)
        book_response(thread, self._spend, event, model=thread.answering_model, rate_limits=self._rate_limits)

    # --- texts that arrive in pieces

    def _find(self, kind: _Kind, item_id: str | None) -> _Open | None:
        if item_id is not None and item_id in self._open:
            return self._open[item_id]
        same = [text for text in self._open.values() if text.kind == kind]
        return same[0] if item_id is None and same else None

    def _open_text(self, kind: _Kind, item_id: str | None) -> _Open:
        prefix = "msg" if kind == "message" else "rs"
        text = _Open(kind, item_id or f"{prefix}_{new_id()}", self._thread.redactor.stream())
        self._open[text.id] = text
        self._journal.post(
            ItemStarted(item=_item(text, "", ItemStatus.IN_PROGRESS), started_at=self._thread.ports.clock.now_ms())
        )
        return text

    def _delta(self, kind: _Kind, item_id: str, delta: str) -> None:
        text = self._find(kind, item_id) or self._open_text(kind, item_id)
        text.parts.append(delta)
        self._show(text, text.stream.feed(delta))

    def _reasoning_delta(self, event: ReasoningSummaryDelta) -> None:
        text = self._find("reasoning", event.item_id) or self._open_text("reasoning", event.item_id)
        new_paragraph = text.parts and event.summary_index > text.summary_index
        text.summary_index = event.summary_index
        self._delta("reasoning", text.id, f"\n\n{event.delta}" if new_paragraph else event.delta)

    def _input_delta(self, event: ToolInputDelta) -> None:
        typing = self._typing.get(event.item_id)
        if typing is None:
            return
        self._show_input(typing, typing.stream.feed(event.delta))
        if typing.patch is not None and (paths := typing.patch.feed(event.delta)):
            shown = tuple(self._thread.redactor.text(path) for path in paths)
            self._journal.live(PatchProgress(item_id=typing.call_id, paths=shown))

    def _show_input(self, typing: _Typing, shown: str) -> None:
        if shown:
            self._journal.live(ToolCallInputDelta(item_id=typing.call_id, name=typing.name, delta=shown))

    def _show(self, text: _Open, shown: str) -> None:
        if not shown:
            return
        if text.kind == "message":
            self._journal.live(AgentMessageDelta(item_id=text.id, delta=shown))
        else:
            self._journal.live(ReasoningDelta(item_id=text.id, delta=shown))

    def _close_text(self, text: _Open, final: str, status: ItemStatus, *, phase: str | None = None) -> None:
        del self._open[text.id]
        item = _item(text, final, status, phase=phase)
        self._journal.post(ItemCompleted(item=item, completed_at=self._thread.ports.clock.now_ms()))


def _item(text: _Open, content: str, status: ItemStatus, *, phase: str | None = None) -> AgentMessageItem | ReasoningItem:
    if text.kind == "message":
        return AgentMessageItem(id=text.id, text=content, status=status, phase=phase)
    return ReasoningItem(id=text.id, summary=tuple(content.split("\n\n")) if content else (), status=status)


def _text_of(message: Message) -> str:
    return "".join(
        part.text if isinstance(part, OutputText) else part.refusal
        for part in message.content
        if isinstance(part, OutputText | Refusal)
    )
