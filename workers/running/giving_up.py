"""The end of a turn that can't be run at all, written without a session: what waits for it is answered, one by one."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from patchyard.adapters.queue import Claim, QueueThreadChannel, WaitingSubmission
from patchyard.agent.context.history import output_for
from patchyard.agent.turns.records import STOPPED, user_records
from patchyard.protocol.errors import ErrorInfo
from patchyard.protocol.events import (
    ItemCompleted,
    OpRejected,
    RequestResolved,
    TaskStatusChanged,
    ThreadClosed,
    ThreadSettingsApplied,
    TurnFailed,
)
from patchyard.protocol.items import ItemStatus, PlanItem, UserMessageItem
from patchyard.protocol.model_items import TokenUsage
from patchyard.protocol.ops import InterAgentCommunication, Review, Shutdown, Submission, ThreadSettings, TurnInput
from patchyard.protocol.rollout_lines import LinePayload
from patchyard.protocol.tasks import TaskStatus
from patchyard.rollout import RestoredThread

log = logging.getLogger(__name__)


@dataclass
class GivingUp:
    """Ends the active turn of a claimed thread with an error. LeaseLost from the channel passes through."""

    channel: QueueThreadChannel
    claim: Claim
    error: ErrorInfo
    redact: Callable[[LinePayload], LinePayload]
    now_ms: Callable[[], int]
    restored: RestoredThread | None = None
    """The thread as its records tell it, when they can be read."""

    async def turn(self) -> None:
        """End the turn; what waits besides it is left for whoever claims the thread next."""
        log.error("a turn is given up: %s", self.error.message)
        await self._close_what_is_open()
        waiting: list[WaitingSubmission] = []
        while self.channel.active_turn_id is not None and self.channel.active_turn_id == self.claim.active_turn_id:
            waiting += await self.channel.take_waiting()
            if await self._end(self.channel.active_turn_id, waiting):
                break
        if self.channel.held:
            await self.channel.hand_over()

    async def thread(self) -> None:
        """End every turn that waits and answer all else: nothing of this thread can be run."""
        log.error("a thread can't be run: %s", self.error.message)
        waiting: list[WaitingSubmission] = []
        while self.channel.held:
            waiting += await self.channel.take_waiting()
            if (turn_id := self.channel.active_turn_id) is not None:
                if await self._end(turn_id, waiting):
                    waiting = [entry for entry in waiting if not _is_of(entry, turn_id)]
                continue
            closes = next((entry.submission for entry in waiting if isinstance(entry.submission.op, Shutdown)), None)
            for submission in (entry.submission for entry in waiting):
                if submission is not closes:
                    await self._write(self._answer_alone(submission, closing=closes is not None), submission)
            if closes is not None:
                await self._write((ThreadClosed(),), closes)
                return
            waiting = []
            await self.channel.release()

    # --- the turn

    async def _close_what_is_open(self) -> None:
        turn = self.restored.turn if self.restored is not None else None
        if self.restored is None or turn is None:
            return
        records: list[LinePayload] = [output_for(call, STOPPED) for call in self.restored.open_calls]
        for question in turn.open_questions:
            name = getattr(question, "approval_id", None) or getattr(question, "request_id", "")
            records.append(RequestResolved(request_id=name, decision="void"))
        for item in turn.open_items:
            whole = isinstance(item, UserMessageItem | PlanItem)
            ended = item if whole else item.model_copy(update={"status": ItemStatus.INTERRUPTED})
            records.append(ItemCompleted(item=ended, completed_at=self.now_ms()))
        if records:
            await self.channel.commit([self.redact(record) for record in records], turn_id=turn.turn_id)

    async def _end(self, turn_id: str, waiting: Sequence[WaitingSubmission]) -> bool:
        """The turn's last record, with the answers to all that was meant for it. False: something came in between."""
        mine = [entry.submission for entry in waiting if _is_of(entry, turn_id)]
        answers = {submission.id: self._answer_in_turn(submission, turn_id) for submission in mine}
        events: list[LinePayload] = []
        ended = TurnFailed(error=self.error, usage=TokenUsage())  # of a turn that nobody has begun
        if turn_id == self.claim.active_turn_id:
            ended = self._ended()
            if self.claim.turn_kind == "regular":
                reason = self.error.code.value
                events.append(TaskStatusChanged(status=TaskStatus.FAILED, reason=reason, error=self.error))
        records = [self.redact(event) for event in (*events, ended)]
        return await self.channel.finish_turn(records, turn_id=turn_id, answers=answers)

    def _ended(self) -> TurnFailed:
        spent, turn = self.claim.spent, self.restored.turn if self.restored is not None else None
        return TurnFailed(
            error=self.error,
            usage=spent.usage,
            cost_usd=spent.cost_usd,
            model_requests=spent.model_requests,
            tool_calls=spent.tool_calls,
            duration_ms=turn.active_ms if turn is not None else 0,
        )

    def _answer_in_turn(self, submission: Submission, turn_id: str) -> Sequence[LinePayload]:
        op = submission.op
        if isinstance(op, TurnInput | InterAgentCommunication | Review):
            # Not lost: a later turn reads it.
            return self._input(submission)
        if submission.id == turn_id:
            return ()  # The turn's end is its answer.
        message = "the turn was ending already" if op.type == "interrupt" else "the turn ended before this could be done"
        return (OpRejected(op=op.type, message=message),)

    def _input(self, submission: Submission) -> Sequence[LinePayload]:
        return [self.redact(record) for record in user_records(submission, self.now_ms())]

    # --- beside a turn

    def _answer_alone(self, submission: Submission, *, closing: bool) -> Sequence[LinePayload]:
        op = submission.op
        if closing:
            return (OpRejected(op=op.type, message="The thread was closed before this could be done."),)
        match op:
            case ThreadSettings():
                return (ThreadSettingsApplied(overrides=op.overrides),)
            case InterAgentCommunication():
                return self._input(submission)
            case _:
                return (self.redact(OpRejected(op=op.type, message=self.error.message)),)

    async def _write(self, records: Sequence[LinePayload], answered: Submission) -> None:
        await self.channel.commit(records, submission_id=answered.id, consumed=[answered.id])


def _is_of(entry: WaitingSubmission, turn_id: str) -> bool:
    """Whether it belongs to the turn. A Shutdown is the thread's."""
    return turn_id in (entry.turn_id, entry.submission.id) and not isinstance(entry.submission.op, Shutdown)
