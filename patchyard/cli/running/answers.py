"""From what a person says to the Op that answers a question; and the questions of a task that nobody has answered."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from patchyard.cli.errors import UsageError
from patchyard.cli.render.questions import Question, id_of, used_of
from patchyard.client import PatchyardClient
from patchyard.protocol.budgets import UNITS, BudgetRequest, why_not
from patchyard.protocol.events import (
    DurableMsg,
    ExecApprovalRequest,
    PatchApprovalRequest,
    RequestResolved,
    RequestUserInput,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    UserQuestion,
)
from patchyard.protocol.ops import ApprovalDecision, BudgetAnswer, ExecApproval, PatchApproval, UserInputAnswer
from patchyard.protocol.policies import BudgetLimits

Answer = ExecApproval | PatchApproval | UserInputAnswer | BudgetAnswer

DECISIONS = ("accept", "accept-for-session", "decline", "cancel")
BUDGET_DECISIONS = ("accept", "decline", "cancel")
_MSG: TypeAdapter[DurableMsg] = TypeAdapter(DurableMsg)


class Open(NamedTuple):
    """A question that waits for an answer."""

    question: Question
    turn_id: str | None


class Asked(NamedTuple):
    """What a task's agent has asked."""

    open: tuple[Open, ...]
    """Oldest first."""
    closed: frozenset[str]
    """Ids of those that were answered, or are void."""


class AskedFold:
    """Collects the questions of a thread from its events."""

    def __init__(self) -> None:
        self._open: dict[str, Open] = {}
        self._closed: set[str] = set()

    def add(self, msg: object, turn_id: str | None) -> None:
        """The next event."""
        match msg:
            case ExecApprovalRequest() | PatchApprovalRequest() | RequestUserInput() | BudgetRequest():
                self._open[id_of(msg)] = Open(msg, turn_id)
            case RequestResolved():
                self._open.pop(msg.request_id, None)
                self._closed.add(msg.request_id)
            case TurnCompleted() | TurnFailed() | TurnInterrupted():
                self._closed |= set(self._open)
                self._open.clear()
            case _:
                pass

    def result(self) -> Asked:
        """What is open now."""
        return Asked(tuple(self._open.values()), frozenset(self._closed))


async def asked_by(client: PatchyardClient, task_id: str) -> Asked:
    """The questions of a task, from its record. PatchyardError."""
    fold, rest = AskedFold(), b""
    async for piece in client.rollout(task_id):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if b'"event_msg"' in line:
                record = json.loads(line)
                if record["type"] == "event_msg":
                    fold.add(_MSG.validate_python(record["payload"]), record.get("turn_id"))
    return fold.result()


def spoken(question: UserQuestion, text: str) -> str:
    """What somebody means who typed this: the number of an option, or words of their own."""
    text = text.strip()
    if question.options and text.isascii() and text.isdigit() and 1 <= int(text) <= len(question.options):
        return question.options[int(text) - 1]
    return text


def limits_of(pairs: Sequence[str], option: str = "--budget") -> BudgetLimits | None:
    """Limits from `name=number` words; None: there are none. UsageError names the wrong one."""
    given: dict[str, str] = {}
    for pair in pairs:
        name, equals, number = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in UNITS:
            raise UsageError(f"{option} {pair}: not NAME=LIMIT.", remedy=f"NAME is one of {', '.join(UNITS)}.")
        given[name] = number.strip()
    if not given:
        return None
    try:
        return BudgetLimits.model_validate(given)
    except ValidationError as error:
        wrong = str(error.errors()[0]["loc"][0])
        kind = "number" if wrong in ("wall_time_s", "cost_usd") else "whole number"
        raise UsageError(
            f"{option} {wrong}={given[wrong]}: not a {kind} above 0.", remedy=f"It counts {UNITS[wrong]}."
        ) from None


def answer_to(question: Question, words: Sequence[str], *, limits: BudgetLimits | None, message: str | None) -> Answer:
    """The answer that a command line gives. UsageError when it does not fit the question."""
    if limits is not None and not isinstance(question, BudgetRequest):
        raise UsageError("--budget needs a question about a budget.", remedy="Leave it out.")
    if message is not None and not isinstance(question, ExecApprovalRequest | PatchApprovalRequest):
        raise UsageError("--message needs a question about a command or a patch.", remedy="Leave it out.")
    match question:
        case ExecApprovalRequest():
            return ExecApproval(approval_id=question.approval_id, decision=_decision(words), message=message)
        case PatchApprovalRequest():
            return PatchApproval(approval_id=question.approval_id, decision=_decision(words), message=message)
        case BudgetRequest():
            return _budget_answer(question, words, limits)
        case RequestUserInput():
            return UserInputAnswer(request_id=question.request_id, answers=_answers(question, words))


def _decision(words: Sequence[str]) -> ApprovalDecision:
    return ApprovalDecision(_one_of(words, DECISIONS).replace("-", "_"))


def _budget_answer(question: BudgetRequest, words: Sequence[str], limits: BudgetLimits | None) -> BudgetAnswer:
    decision = _one_of(words, BUDGET_DECISIONS)
    if limits is not None:
        if decision != "accept":
            raise UsageError("--budget goes with `accept` only.", remedy="Leave it out, or accept.")
        refusal = why_not(question, limits)
        if refusal is not None:
            raise UsageError(f"--budget: {refusal}.", remedy=f"Used so far: {used_of(question)}.")
    return BudgetAnswer.model_validate({"request_id": question.request_id, "decision": decision, "budgets": limits})


def _one_of(words: Sequence[str], allowed: Sequence[str]) -> str:
    if len(words) != 1 or words[0] not in allowed:
        raise UsageError(f"{' '.join(words)!r} is no answer to this question.", remedy=f"Answer {', '.join(allowed)}.")
    return words[0]


def _answers(question: RequestUserInput, words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    asked = question.questions
    if len(words) != len(asked):
        raise UsageError(
            f"{len(asked)} answer(s) are wanted, {len(words)} came.",
            remedy="Give one for each question, in their order, in quotes where it has spaces.",
        )
    if empty := [one.question for one, word in zip(asked, words, strict=True) if not word.strip()]:
        raise UsageError(f"There is no answer to: {empty[0]}", remedy="Say something.")
    return {one.id: (spoken(one, word),) for one, word in zip(asked, words, strict=True)}
