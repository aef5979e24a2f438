"""What a turn knows about itself; shared by its loop and its ending."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from patchyard.agent.approvals import first_of
from patchyard.agent.budget import Spend
from patchyard.agent.config import Settings
from patchyard.agent.ports import TurnOutcome
from patchyard.agent.thread import Thread
from patchyard.protocol.errors import ErrorInfo
from patchyard.protocol.events import OpApplied, OpRejected
from patchyard.protocol.model_items import Message
from patchyard.protocol.ops import Compact, Submission, TurnOverrides, TurnSettings
from patchyard.protocol.rollout_lines import LinePayload
from patchyard.protocol.tasks import TurnStatus

from . import records

TurnEnd = Literal["completed", "interrupted", "failed", "parked", "suspended"]
StopKind = Literal["interrupt", "suspend", "wall_time"]

_NEWS_S = 1.0
"""How long a turn that could not finish waits for the steer that stands in its way before it tries again."""


@dataclass
class TurnState:
    """See the module."""

    thread: Thread
    id: str
    spend: Spend
    submission: Submission | None
    """What started the turn. None after a recovery, unless its input was not recorded yet."""
    steers: deque[Submission] = field(default_factory=deque)
    """Input that came for the running turn and was not delivered yet."""
    interrupts: list[Submission] = field(default_factory=list)
    """Accepted interrupts that were not answered yet."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with every submission that the session dispatches."""
    input_recorded: bool = False
    last_message: str | None = None
    """The newest complete message of the model in this segment."""
    at_end: bool = False
    """Too late to stop it."""
    kind: Literal["regular", "review", "compact", "user_shell"] = "regular"
    keep_background: bool = False
    """The interrupt spares commands that became sessions."""
    announced: bool = False
    """Its first record is written, or in line."""
    began_with: Settings | None = None
    """The thread's settings then; later changes are for later turns. None: it has not begun yet."""
    overrides: TurnOverrides = field(default_factory=TurnOverrides)
    """Settings that were changed for this turn only."""
    changes: list[Submission] = field(default_factory=list)
    """Ops that did so and were not answered yet."""
    later: list[Submission] = field(default_factory=list)
    """Ops that came meanwhile and wait for the turn's end; a `compact` among them is also done between two steps."""

    @property
    def takes_input(self) -> bool:
        """Whether what started the turn is told to the model as input."""
        return self.kind in ("regular", "review")

    def input_records(self, *, for_model: bool = True) -> tuple[LinePayload, ...]:
        """Records of the input that started the turn, when they are not in the rollout yet.

        `for_model`: False leaves out what the model would read, since a hook refused it.
        """
        if self.submission is None or self.input_recorded or not self.takes_input:
            return ()
        self.input_recorded = True
        untrusted = self.thread.config.spec.instruction_untrusted and not self.thread.history.items
        made = records.user_records(self.submission, self.thread.ports.clock.now_ms(), untrusted=untrusted)
        return made if for_model else tuple(record for record in made if not isinstance(record, Message))

    def change(self, submission: Submission, overrides: TurnOverrides) -> None:
        """Other settings from the next step on. The answer is what a successor knows them by: it comes after the turn's start."""
        self.overrides = overrides.over(self.overrides)
        self.changes.append(submission)
        if self.announced:
            self.answer_changes()

    def answer_changes(self) -> None:
        """Record them."""
        for change in self.changes:
            if isinstance(change.op, TurnSettings):
                applied = OpApplied(op=change.op.type, overrides=change.op.overrides)
                self.thread.journal.post(applied, submission_id=change.id, consumed=[change.id])
        self.changes.clear()

    def asked_compactions(self) -> Sequence[Submission]:
        """Ops `compact` that came for this turn."""
        return [submission for submission in self.later if isinstance(submission.op, Compact)]

    async def deliver_steers(self) -> bool:
        """Record what came for this turn; True when there was something that a hook did not refuse."""
        delivered = False
        journal, hooks = self.thread.journal, self.thread.hooks
        while self.steers:
            # It stays in its place while hooks look at it: an interrupt names it as dropped then.
            steer = self.steers[0]
            verdict = await hooks.user_prompt(records.text_of(steer))
            self.steers.popleft()
            if (why := verdict.block or verdict.stop) is not None:
                refused = OpRejected(op=steer.op.type, message=f"A UserPromptSubmit hook refused this: {why}")
                journal.post(refused, *hooks.notes(verdict), submission_id=steer.id, consumed=[steer.id])
                continue
            delivered = True
            payloads = (*records.user_records(steer, self.thread.ports.clock.now_ms()), *hooks.notes(verdict))
            journal.post(*payloads, submission_id=steer.id, consumed=[steer.id])
        self.thread.agents.input_came.clear()
        return delivered

    def answers_to_interrupts(self, *, applied: bool) -> Mapping[str, Sequence[LinePayload]]:
        """Answers by submission: they go with the turn's last record, so that each is given once, whenever a worker dies."""
        refused = OpRejected(op="interrupt", message="the turn was ending already")
        answer = OpApplied(op="interrupt") if applied else refused
        return {interrupt.id: (answer,) for interrupt in self.interrupts}

    async def finish(
        self,
        *events: LinePayload,
        consumed: Sequence[str] = (),
        answers: Mapping[str, Sequence[LinePayload]] | None = None,
    ) -> bool:
        """Commit the terminal records. False: a steer stands in the way; it is in `steers`, or news came of it."""
        self.news.clear()
        keep = self.thread.processes.kept_running
        finishing = self.thread.journal.finish_turn(
            *events, turn_id=self.id, consumed=consumed, answers=answers, keep_lease=keep
        )
        if await finishing:
            self.interrupts = [interrupt for interrupt in self.interrupts if interrupt.id not in (answers or {})]
            return True
        if not self.steers:
            await self.wait_news()
        return False

    async def wait_news(self) -> None:
        """Wait for another submission."""
        await first_of(self.news.wait(), self.thread.ports.clock.sleep(_NEWS_S))

    def outcome(self, status: TurnStatus, error: ErrorInfo | None) -> TurnOutcome:
        """For the gate."""
        return TurnOutcome(
            turn_id=self.id,
            status=status,
            error=error,
            usage=self.spend.usage,
            cost_usd=self.spend.cost_usd,
            last_agent_message=self.last_message,
            changed_files=self.thread.changed_files,
            kind=self.kind,
        )

    def sums(self) -> dict[str, Any]:
        """What every terminal event tells."""
        spend = self.spend
        return {
            "usage": spend.usage,
            "cost_usd": spend.cost_usd,
            "model_requests": spend.model_requests,
            "tool_calls": spend.tool_calls,
            "duration_ms": round(spend.elapsed_s(self.thread.ports.clock.now_ms()) * 1000),
        }
