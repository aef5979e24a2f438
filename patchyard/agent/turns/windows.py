"""The context windows of a turn: where in its course one may be closed, and what happens then."""

from collections.abc import Awaitable, Callable, Sequence

from patchyard.agent.compaction.compactor import Compactor
from patchyard.agent.compaction.hooks import Reason
from patchyard.agent.compaction.reminders import reminder
from patchyard.agent.compaction.window import asks_for_window, has_answers
from patchyard.agent.context import tokens
from patchyard.agent.context.images import without_images
from patchyard.agent.context.marks import WINDOW_REFUSED, tagged
from patchyard.agent.context.surroundings import IMAGES, Surroundings, Told, tell
from patchyard.agent.errors import BudgetExceeded, CompactionRefused, TurnError
from patchyard.agent.prompts import window_text
from patchyard.agent.retrying import too_long
from patchyard.agent.thread import Thread
from patchyard.agent.tools.registry import Registry
from patchyard.protocol.events import OpApplied, OpRejected, Warning_
from patchyard.protocol.model_items import Message
from patchyard.protocol.ops import Submission, TextInput, UserInput
from patchyard.protocol.rollout_lines import Compacted, WorldState

from . import records
from .state import TurnState

NOTHING = "There is nothing to compact: the model has not said anything since the context window began."


class TurnWindows:
    """See the module. Every method may raise CompactionRefused, TurnError or ParkTurn; the history is as before then."""

    def __init__(
        self,
        state: TurnState,
        registry: Registry,
        *,
        segment: int,
        look: Callable[[], Awaitable[Surroundings]],
        context: Callable[[], Sequence[Message]],
    ) -> None:
        self._state = state
        self._thread: Thread = state.thread
        self._journal = state.thread.journal
        self._look = look
        self._context = context
        """What this kind of turn tells beside the surroundings."""
        self._compactor = Compactor(state.thread, state.spend, turn_id=state.id, segment=segment, tools=registry.specs())

    async def before_input(self) -> None:
        """Before the turn's own input is recorded. The context is told with the input afterwards."""
        submission = self._state.submission
        items = records.input_items(submission) if submission is not None else ()
        reason = self._compactor.due(more=sum(_tokens_of(item) for item in items))
        if reason is not None:
            await self._compactor.run(reason, None)
        elif self._promised:
            await self._as_promised(inside=False)
        await self._fit_images()

    async def between_steps(self) -> None:
        """Before the next request of a turn that goes on."""
        for submission in self._state.asked_compactions():
            await self._as_asked(submission)
        reason = self._compactor.due()
        if reason is not None and not self._state.spend.last_request:
            await self._inside(reason)
        elif self._promised and not self._state.spend.last_request:
            await self._as_promised(inside=True)
        await self._fit_images()
        if self._own_choice:
            self._journal.post(*reminder(self._compactor.use(), world=self._journal.world))

    async def make_room(self) -> None:
        """The model said that the request does not fit. TurnError when nothing can be left out."""
        if not has_answers(self._thread.history.items):
            raise too_long()
        await self._inside("context_limit")

    async def alone(self) -> None:
        """The one thing that a compact turn does."""
        if has_answers(self._thread.history.items):
            await self._compactor.run("manual", None)
        else:
            self._journal.post(Warning_(message=NOTHING))

    @property
    def _own_choice(self) -> bool:
        """Whether the model has a say in when a window ends."""
        return self._thread.config.compaction == "token_budget"

    @property
    def _promised(self) -> bool:
        """Whether the model asked for a new window that was not opened yet."""
        return self._own_choice and asks_for_window(self._thread.history.items)

    async def _as_promised(self, *, inside: bool) -> None:
        """The tool `new_context_window`. The turn can do without: a hook's refusal is told to the model."""
        try:
            await (self._inside("model_asked") if inside else self._compactor.run("model_asked", None))
        except CompactionRefused as refused:
            text = window_text("refused").format(reason=refused.reason)
            self._journal.post(records.note(tagged(WINDOW_REFUSED, text), role="developer"))

    async def _as_asked(self, submission: Submission) -> None:
        """The Op `compact`. What goes wrong is its answer: the turn does not depend on it."""
        if not has_answers(self._thread.history.items):
            self._answer(submission, OpRejected(op="compact", message=NOTHING))
            return
        try:
            await self._inside("manual")
        except CompactionRefused as refused:
            self._answer(submission, OpRejected(op="compact", message=f"A hook refused it: {refused.reason}"))
        except BudgetExceeded:
            raise
        except TurnError as error:
            self._answer(submission, OpRejected(op="compact", message=error.info.message))
        else:
            self._answer(submission, OpApplied(op="compact"))

    def _answer(self, submission: Submission, answer: OpApplied | OpRejected) -> None:
        self._state.later.remove(submission)
        self._journal.post(answer, submission_id=submission.id, consumed=[submission.id])

    async def _inside(self, reason: Reason) -> None:
        told = tell(await self._look(), None)
        await self._compactor.run(reason, Told((*told.items, *self._context()), told.record))

    async def _fit_images(self) -> None:
        """Another model may read images that the last one could not, or the other way round: that takes a new window."""
        history, world = self._thread.history, self._journal.world
        images = self._thread.config.profile(self._thread.active_settings.model).images
        if images == history.images:
            return
        history.images = images
        if not any(tokens.has_images(item) for item in history.items):
            return
        items = tuple(history.items if images else map(without_images, history.items))
        moved = Compacted(window_number=history.window_number + 1, replacement_history=items, reason="model_changed")
        told = () if world is None else (WorldState(full=True, state={**world, IMAGES: images}),)
        await self._journal.commit(moved, *told)


def _tokens_of(item: UserInput) -> int:
    return tokens.of_text(item.text) if isinstance(item, TextInput) else tokens.IMAGE_TOKENS
