"""Questions to people: asked as events, answered by Ops; the first answer wins; too long a wait parks the turn."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, assert_never

from patchyard.agent.errors import ParkReason, ParkTurn, StopTurn
from patchyard.agent.journal import Journal
from patchyard.agent.ports import Clock
from patchyard.protocol.budgets import BudgetRequest, why_not
from patchyard.protocol.events import (
    ExecApprovalRequest,
    PatchApprovalRequest,
    RequestResolved,
    RequestUserInput,
)
from patchyard.protocol.ops import (
    ApprovalDecision,
    BudgetAnswer,
    ExecApproval,
    PatchApproval,
    Submission,
    UserInputAnswer,
)
from patchyard.protocol.policies import BudgetLimits
from patchyard.protocol.rollout_lines import LinePayload

Question = ExecApprovalRequest | PatchApprovalRequest | RequestUserInput | BudgetRequest
AnswerOp = ExecApproval | PatchApproval | UserInputAnswer | BudgetAnswer
Asking = TypeVar("Asking", ExecApprovalRequest, PatchApprovalRequest)


@dataclass(frozen=True)
class Answer:
    """What became of a question."""

    decision: ApprovalDecision | Literal["answered", "expired"]
    message: str | None = None
    prefix_rule: tuple[str, ...] | None = None
    answers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    budgets: BudgetLimits | None = None
    """Limits to set, of an accepted question about a budget."""
    by: str | None = None
    """Name of the token that gave it."""

    @property
    def accepted(self) -> bool:
        """Whether a person said yes."""
        return self.decision in (ApprovalDecision.ACCEPT, ApprovalDecision.ACCEPT_FOR_SESSION)


@dataclass
class _Open:
    request: Question
    expires_ms: int
    submission: Submission | None = None
    answered: asyncio.Event = field(default_factory=asyncio.Event)


def question_id(request: Question) -> str:
    """The id that an answer names."""
    match request:
        case ExecApprovalRequest() | PatchApprovalRequest():
            return request.approval_id
        case RequestUserInput() | BudgetRequest():
            return request.request_id
        case _:
            assert_never(request)


class Questions:
    """The open questions of a thread."""

    def __init__(self, journal: Journal, clock: Clock, *, hold_time_s: float, expiry_s: float) -> None:
        self._journal = journal
        self._clock = clock
        self._hold_time_s = hold_time_s
        self._expiry_s = expiry_s
        self._open: dict[str, _Open] = {}
        self._resolved: set[str] = set()

    def restore(self, requests: Iterable[Question], *, until_ms: int | None) -> None:
        """Questions that an earlier segment asked; `until_ms` is when they expire."""
        for request in requests:
            expires = self._clock.now_ms() + int(self._expiry_s * 1000) if until_ms is None else until_ms
            self._open[question_id(request)] = _Open(request, expires)

    def find(self, item_id: str) -> Question | None:
        """The open question about a tool call."""
        return next((o.request for o in self._open.values() if _item_id(o.request) == item_id), None)

    @property
    def about_budget(self) -> BudgetRequest | None:
        """The open question about a budget; there is never more than one."""
        return next((o.request for o in self._open.values() if isinstance(o.request, BudgetRequest)), None)

    def asked_before(self, request: Asking) -> Asking | None:
        """The open question of an earlier segment about the same call, if it asks for the very same thing.

        An answer to it must not be taken for another command or patch.
        """
        found = self.find(request.item_id)
        same = {"approval_id": request.approval_id, "reason": request.reason, "session_scope": request.session_scope}
        if not isinstance(found, type(request)):
            return None
        redact = self._journal.redactor.payload
        return found if redact(found).model_copy(update=same) == redact(request).model_copy(update=same) else None

    def has_news(self) -> bool:
        """Whether an answer waits that nobody has taken yet."""
        return any(o.submission is not None for o in self._open.values())

    def answer(self, submission: Submission, op: AnswerOp) -> str | None:
        """Take an answer. None when it was taken, else why not."""
        wanted = op.request_id if isinstance(op, UserInputAnswer | BudgetAnswer) else op.approval_id
        found = self._open.get(wanted)
        if found is None or found.submission is not None:
            known = found is not None or wanted in self._resolved
            return "the question was answered already" if known else "there is no open question with this id"
        if not _fits(op, found.request):
            return "the question is of another kind"
        if isinstance(found.request, RequestUserInput) and isinstance(op, UserInputAnswer):
            unknown = sorted(set(op.answers) - {question.id for question in found.request.questions})
            if unknown:
                return f"no question has the id {unknown[0][:80]!r}"
        if isinstance(found.request, BudgetRequest) and isinstance(op, BudgetAnswer) and op.budgets is not None:
            refusal = why_not(found.request, op.budgets)
            if refusal is not None:
                return refusal
        found.submission = submission
        found.answered.set()
        return None

    async def ask(
        self, request: Question, *, can_park: bool = True, told: Callable[[Answer], Sequence[LinePayload]] | None = None
    ) -> Answer:
        """Ask, or go on asking what an earlier segment asked. `told`: recorded in one write with a person's answer.

        After the hold time ParkTurn, or `expired` without `can_park`; StopTurn when the answer is `cancel`.
        """
        asked = self._open.get(question_id(request))
        if asked is None:
            asked = _Open(request, self._clock.now_ms() + int((self._expiry_s if can_park else self._hold_time_s) * 1000))
            self._open[question_id(request)] = asked
            await self._journal.commit(request)
        left = (asked.expires_ms - self._clock.now_ms()) / 1000
        if not asked.answered.is_set() and left > 0:
            await first_of(asked.answered.wait(), self._clock.sleep(min(left, self._hold_time_s)))
        if asked.submission is not None:
            return await self._resolve(asked, asked.submission, told)
        if self._clock.now_ms() >= asked.expires_ms:
            self._close(asked)
            await self._journal.commit(RequestResolved(request_id=question_id(request), decision="expired"))
            return Answer("expired")
        raise ParkTurn(_park_reason(request), asked.expires_ms)

    def void_all(self) -> None:
        """The turn ended: nobody waits for answers any more. Answers that came too late count as given."""
        for asked in list(self._open.values()):
            self._close(asked)
            consumed = [asked.submission.id] if asked.submission else []
            submission_id = consumed[0] if consumed else None
            resolved = RequestResolved(request_id=question_id(asked.request), decision="void")
            self._journal.post(resolved, submission_id=submission_id, consumed=consumed)

    async def _resolve(
        self, asked: _Open, submission: Submission, told: Callable[[Answer], Sequence[LinePayload]] | None
    ) -> Answer:
        answer = replace(_answer(submission.op, asked.request), by=submission.author)
        self._close(asked)
        await self._journal.commit(
            RequestResolved(request_id=question_id(asked.request), decision=answer.decision, budgets=answer.budgets),
            *(() if told is None else told(answer)),
            submission_id=submission.id,
            consumed=[submission.id],
        )
        if answer.decision is ApprovalDecision.CANCEL:
            raise StopTurn
        return answer

    def _close(self, asked: _Open) -> None:
        del self._open[question_id(asked.request)]
        self._resolved.add(question_id(asked.request))


def _item_id(request: Question) -> str:
    return request.item_id if isinstance(request, ExecApprovalRequest | PatchApprovalRequest) else request.request_id


def _park_reason(request: Question) -> ParkReason:
    match request:
        case ExecApprovalRequest() | PatchApprovalRequest():
            return "approval"
        case RequestUserInput():
            return "user_input"
        case BudgetRequest():
            return "budget"
        case _:
            assert_never(request)


def _fits(op: AnswerOp, request: Question) -> bool:
    match op:
        case ExecApproval():
            return isinstance(request, ExecApprovalRequest)
        case PatchApproval():
            return isinstance(request, PatchApprovalRequest)
        case UserInputAnswer():
            return isinstance(request, RequestUserInput)
        case BudgetAnswer():
            return isinstance(request, BudgetRequest)
        case _:
            assert_never(op)


def _answer(op: object, request: Question) -> Answer:
    match op:
        case BudgetAnswer() if isinstance(request, BudgetRequest):
            accepted = op.decision == "accept"
            limits = (op.budgets or BudgetLimits()).over(request.proposed) if accepted else None
            return Answer(ApprovalDecision(op.decision), budgets=limits)
        case ExecApproval():
            return Answer(op.decision, op.message, op.prefix_rule)
        case PatchApproval():
            return Answer(op.decision, op.message)
        case UserInputAnswer():
            return Answer("answered", answers=op.answers)
        case _:
            raise AssertionError(f"{op} is no answer")


async def first_of(*waits: Awaitable[Any]) -> None:
    """Wait for the first; the others are cancelled and gone when it returns."""
    tasks = [asyncio.ensure_future(w) for w in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
