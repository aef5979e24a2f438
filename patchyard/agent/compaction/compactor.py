"""Opens a new context window: the three ways to make one, and everything that is recorded about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from patchyard.agent.budget import Spend
from patchyard.agent.context.marks import SUMMARY, tagged
from patchyard.agent.context.surroundings import Told
from patchyard.agent.errors import CompactionRefused, ContextOverflow, ParkTurn, TurnError
from patchyard.agent.prompts import compaction_prompt, window_text
from patchyard.agent.thread import Thread
from patchyard.agent.tools.output import truncate
from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.events import ItemCompleted, ItemStarted, Warning_
from patchyard.protocol.ids import new_id
from patchyard.protocol.items import ContextCompactionItem, ItemStatus
from patchyard.protocol.model_items import CompactionItem, InputText, Message, ModelItem, OpaqueItem
from patchyard.protocol.model_profiles import CompactionMethod
from patchyard.protocol.rollout_lines import Compacted, LinePayload

from .hooks import Reason, Trigger
from .meter import WindowUse, window_use
from .request import CompactionRequest, tokens_of
from .window import fresh_window_note, has_answers, new_window, user_messages

USER_TOKENS = 20_000
"""Most tokens of user messages that a window takes from the one before."""
REMOTE_USER_TOKENS = 64_000
"""The same beside a provider's own compaction."""
SUMMARY_TOKENS = 20_000
"""Most tokens of a summary."""
MANY_WINDOWS = 2
"""From so many compactions of a thread on, people are warned."""
_GROWTH = 10
"""A window is not closed again before it grew by this part of the limit: one step a window would help nobody."""
_EMPTY = "The model's summary of the conversation was empty."
_MANY = (
    "This thread has been compacted {count} times. Each time details get lost, so the agent may become less accurate; "
    "for new work a new thread is better."
)


@dataclass(frozen=True)
class _Made:
    """What a method brings: the last item of the new window, and how many tokens of user messages go before it."""

    method: CompactionMethod
    tail: ModelItem
    user_tokens: int
    summary: str | None = None


class Compactor:
    """The context windows of one turn."""

    def __init__(self, thread: Thread, spend: Spend, *, turn_id: str, segment: int, tools: Sequence[Mapping[str, Any]]) -> None:
        self._thread = thread
        self._journal = thread.journal
        self._spend = spend
        self._turn_id = turn_id
        self._segment = segment
        self._tools = tools
        self._count = 0
        self._opened_with = 0

    # --- when

    def use(self) -> WindowUse:
        """How full the window is."""
        return window_use(self._thread, self._tools)

    def due(self, *, more: int = 0) -> Reason | None:
        """Why the window has to be closed before `more` tokens are added; None: it goes on."""
        thread = self._thread
        config, model = thread.config, thread.active_settings.model
        use = self.use()
        used = use.used + more
        if used < use.limit or used - self._opened_with < use.limit // _GROWTH or not has_answers(thread.history.items):
            return None
        last = thread.answering_model
        larger = last is not None and config.profile(last).context_window > use.window
        return "model_downshift" if larger and last != model else "context_limit"

    # --- how

    async def run(self, reason: Reason, context: Told | None) -> None:
        """Open a new window. Inside a turn `context` is told in it.

        CompactionRefused, TurnError, ParkTurn and a cancellation leave the history as it was.
        """
        thread = self._thread
        trigger: Trigger = "manual" if reason == "manual" else "auto"
        refusal = await thread.compaction_hooks.before(trigger)
        if refusal is not None:
            raise CompactionRefused(refusal)
        item = ContextCompactionItem(
            id=f"cmp_{new_id()}",
            status=ItemStatus.IN_PROGRESS,
            trigger=trigger,
            method=thread.config.compaction,
            tokens_before=self.use().used,
        )
        await self._journal.commit(ItemStarted(item=item, started_at=thread.ports.clock.now_ms()))
        try:
            made = await self._make(reason)
        except (TurnError, ParkTurn) as error:
            status = ItemStatus.INTERRUPTED if isinstance(error, ParkTurn) else ItemStatus.FAILED
            self._journal.post(self._ended(item.model_copy(update={"status": status})))
            raise
        await self._open(reason, made, context, item)
        await thread.compaction_hooks.after(trigger)

    async def _make(self, reason: Reason) -> _Made:
        thread = self._thread
        model = thread.active_settings.model
        if reason == "model_downshift" and thread.answering_model is not None:
            model = thread.answering_model
        method = thread.config.compaction
        match method:
            case "local":
                return await self._local(model)
            case "remote":
                return await self._remote(model)
            case "token_budget":
                text = fresh_window_note(thread.history.items)
                return _Made(method, _user(text), USER_TOKENS)
            case _:
                assert_never(method)

    async def _local(self, model: str) -> _Made:
        answer = await self._request(model, tools=()).send(_user(compaction_prompt()))
        if not answer.text:
            raise TurnError(ErrorInfo.of(ErrorCode.MODEL_STREAM_FAILED, _EMPTY))
        summary = truncate(answer.text, SUMMARY_TOKENS)
        text = tagged(SUMMARY, f"{window_text('summary')}\n\n{summary}")
        return _Made("local", _user(text), USER_TOKENS, summary)

    async def _remote(self, model: str) -> _Made:
        """The provider's own; where it fails for good, ours: a long turn must not end for it."""
        try:
            answer = await self._request(model, tools=self._tools).send(OpaqueItem(type="compaction_trigger"))
        except ContextOverflow:
            raise
        except TurnError as error:
            if error.info.code is not ErrorCode.MODEL_BAD_REQUEST:
                raise
            return await self._instead_of_remote(model, error.info.message)
        found = [item for item in answer.items if isinstance(item, CompactionItem)]
        if len(found) != 1:
            return await self._instead_of_remote(model, f"one compaction item was expected, {len(found)} came")
        return _Made("remote", found[0], REMOTE_USER_TOKENS)

    async def _instead_of_remote(self, model: str, why: str) -> _Made:
        self._journal.post(
            Warning_(message=f"The provider could not compact the conversation ({why}). The model summarises it.")
        )
        return await self._local(model)

    def _request(self, model: str, *, tools: Sequence[Mapping[str, Any]]) -> CompactionRequest:
        self._count += 1
        key = f"{self._segment}.compaction.{self._count}"
        return CompactionRequest(self._thread, self._spend, self._turn_id, key, model, tools)

    # --- the new window

    async def _open(self, reason: Reason, made: _Made, context: Told | None, item: ContextCompactionItem) -> None:
        """Everything in one write: whoever takes over finds the old window or the whole new one."""
        thread = self._thread
        history = thread.history
        # A small window must not be filled by what it keeps.
        budget = min(made.user_tokens, thread.config.context_limit(thread.active_settings.model) // 2)
        told = () if context is None else context.items
        items = new_window(user_messages(history.items, budget), made.tail, context=told, in_turn=context is not None)
        number = history.window_number + 1
        ended = item.model_copy(
            update={
                "status": ItemStatus.COMPLETED,
                "window_number": number,
                "method": made.method,
                "tokens_after": tokens_of(items),
            }
        )
        compacted = Compacted(
            window_number=number, replacement_history=items, summary=made.summary, reason=reason, method=made.method
        )
        payloads: list[LinePayload] = [compacted]
        if context is not None and context.record is not None:
            payloads.append(context.record)
        payloads.append(self._ended(ended))
        if number >= MANY_WINDOWS:
            payloads.append(Warning_(message=_MANY.format(count=number)))
        self._journal.post(*payloads)
        self._spend.new_window()
        self._opened_with = self.use().used
        await self._journal.flush()

    def _ended(self, item: ContextCompactionItem) -> ItemCompleted:
        return ItemCompleted(item=item, completed_at=self._thread.ports.clock.now_ms())


def _user(text: str) -> Message:
    return Message(role="user", content=(InputText(text=text),))
