"""How a person at a terminal is asked: what is printed, and what each line that they type means."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, assert_never

from pydantic import ValidationError

from patchyard.cli.render.questions import Shown, input_lines, proposed, question_lines
from patchyard.protocol.approvals import SessionScope
from patchyard.protocol.budgets import UNITS, BudgetRequest, figure, why_not
from patchyard.protocol.events import ExecApprovalRequest, PatchApprovalRequest, RequestUserInput
from patchyard.protocol.ops import (
    ApprovalDecision,
    BudgetAnswer,
    ExecApproval,
    Interrupt,
    PatchApproval,
    UserInputAnswer,
)
from patchyard.protocol.policies import BudgetLimits

from .answers import Answer, Open, spoken

Reply = Answer | Interrupt


class Said(NamedTuple):
    """What came of a line."""

    reply: Reply | None = None
    """The answer; None: more has to be said."""
    text: str = ""
    """What is printed then."""
    asks_next: bool = False
    """The text asks another question: what was typed before it is no answer to it."""


class Dialog(Protocol):
    """One question, until it is answered."""

    def prompt(self) -> str:
        """What is asked now, to be printed before a line is typed."""
        ...

    def take(self, line: str) -> Said:
        """A line that was typed."""
        ...


def dialog_for(asked: Open) -> Dialog:
    """How this question is asked."""
    question = asked.question
    match question:
        case ExecApprovalRequest():
            return _ApprovalDialog(question, lambda decision: ExecApproval(approval_id=question.approval_id, decision=decision))
        case PatchApprovalRequest():
            return _ApprovalDialog(
                question, lambda decision: PatchApproval(approval_id=question.approval_id, decision=decision)
            )
        case BudgetRequest():
            return _BudgetDialog(question)
        case RequestUserInput():
            return _InputDialog(question, asked.turn_id)
        case _:
            assert_never(question)


def _below(lines: Sequence[Shown], choices: str) -> str:
    """A question always stands right above the answers that can be given to it."""
    return "\n".join([*(f"{line.mark} {line.text}" for line in lines), choices])


_SCOPES: dict[SessionScope, str] = {"thread": "in this task", "repository": "on this repository"}
_DECISIONS = {
    "y": ApprovalDecision.ACCEPT,
    "yes": ApprovalDecision.ACCEPT,
    "n": ApprovalDecision.DECLINE,
    "no": ApprovalDecision.DECLINE,
    "a": ApprovalDecision.ACCEPT_FOR_SESSION,
    "always": ApprovalDecision.ACCEPT_FOR_SESSION,
    "c": ApprovalDecision.CANCEL,
    "cancel": ApprovalDecision.CANCEL,
}


@dataclass
class _ApprovalDialog:
    question: ExecApprovalRequest | PatchApprovalRequest
    answer: Callable[[ApprovalDecision], Reply]

    def prompt(self) -> str:
        choices = f"  [y]es, [n]o, [a]lways {_SCOPES[self.question.session_scope]}, [c]ancel the turn? "
        return _below(question_lines(self.question), choices)

    def take(self, line: str) -> Said:
        decision = _DECISIONS.get(line.strip().lower())
        return Said(text="  Please answer y, n, a or c: ") if decision is None else Said(self.answer(decision))


_BUDGET_WORDS = {"y": "accept", "yes": "accept", "n": "decline", "no": "decline", "c": "cancel", "cancel": "cancel"}


@dataclass
class _BudgetDialog:
    question: BudgetRequest

    def prompt(self) -> str:
        unit = UNITS[self.question.budget]
        choices = f"  [y]es: {proposed(self.question)}, [n]o: end the turn, [c]ancel the turn, or another limit of {unit}? "
        return _below(question_lines(self.question), choices)

    def take(self, line: str) -> Said:
        word = line.strip().lower()
        if word in _BUDGET_WORDS:
            return self._said(_BUDGET_WORDS[word], None)
        limits = self._limits(word)
        if limits is None:
            kind = "number" if self.question.budget in ("wall_time_s", "cost_usd") else "whole number"
            return Said(text=f"  Please answer y, n, c or a {kind} above {figure(self.question.used)}: ")
        refusal = why_not(self.question, limits)
        return self._said("accept", limits) if refusal is None else Said(text=f"  No: {refusal}: ")

    def _limits(self, word: str) -> BudgetLimits | None:
        try:
            return BudgetLimits.model_validate({self.question.budget.value: word})
        except ValidationError:
            return None

    def _said(self, decision: str, limits: BudgetLimits | None) -> Said:
        answer = {"request_id": self.question.request_id, "decision": decision, "budgets": limits}
        return Said(BudgetAnswer.model_validate(answer))


@dataclass
class _InputDialog:
    """The agent's own questions, one after the other."""

    question: RequestUserInput
    turn_id: str | None
    answers: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def prompt(self) -> str:
        asked = self.question.questions
        one = asked[len(self.answers)]
        head, *options = input_lines(one)
        if len(asked) > 1:
            head = head._replace(text=f"{head.text} ({len(self.answers) + 1} of {len(asked)})")
        how = f"a number from 1 to {len(one.options)}, or your own words" if one.options else "your answer"
        return _below([head, *options], f"  {how} (/cancel ends the turn): ")

    def take(self, line: str) -> Said:
        text = line.strip()
        if text.lower() == "/cancel":
            return Said(Interrupt(turn_id=self.turn_id))
        if not text:
            return Said(text="  Please answer, or /cancel: ")
        one = self.question.questions[len(self.answers)]
        self.answers[one.id] = (spoken(one, text),)
        if len(self.answers) < len(self.question.questions):
            return Said(text=self.prompt(), asks_next=True)
        return Said(UserInputAnswer(request_id=self.question.request_id, answers=self.answers))
