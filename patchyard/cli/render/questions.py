"""Questions of an agent as people read them, and the command lines that answer them."""

from typing import NamedTuple, assert_never

from patchyard.protocol.budgets import UNITS, BudgetRequest, figure
from patchyard.protocol.events import ExecApprovalRequest, PatchApprovalRequest, RequestUserInput, UserQuestion

from .text import one_line, safe

Question = ExecApprovalRequest | PatchApprovalRequest | RequestUserInput | BudgetRequest


class Shown(NamedTuple):
    """A line on the screen."""

    mark: str
    text: str
    style: str


def id_of(question: Question) -> str:
    """The id that an answer names."""
    if isinstance(question, ExecApprovalRequest | PatchApprovalRequest):
        return question.approval_id
    return question.request_id


def question_lines(question: Question) -> list[Shown]:
    """What is asked, and why."""
    match question:
        case ExecApprovalRequest():
            return [
                Shown("?", f"may this command run? {one_line(' '.join(question.command), 160)}", "bold yellow"),
                *_why(question.reason),
            ]
        case PatchApprovalRequest():
            paths = ", ".join(safe(change.path) for change in question.changes)
            return [Shown("?", f"may this patch be written? {paths}", "bold yellow"), *_why(question.reason)]
        case BudgetRequest():
            used = f"{figure(question.used)} of {figure(question.limit)} {UNITS[question.budget]}"
            return [
                Shown("?", f"the turn's budget is used up ({used}); may it have more?", "bold yellow"),
                Shown(" ", f"  yes sets: {proposed(question)}; used so far: {used_of(question)}", "dim"),
            ]
        case RequestUserInput():
            return [Shown(*line) for one in question.questions for line in input_lines(one)]
        case _:
            assert_never(question)


def input_lines(one: UserQuestion) -> list[Shown]:
    """One question of the agent with its numbered options."""
    head = f"[{one_line(one.header, 60)}] " if one.header else ""
    options = [Shown(" ", f"  {number}  {safe(option)}", "") for number, option in enumerate(one.options, start=1)]
    return [Shown("?", f"{head}{safe(one.question)}", "bold yellow"), *options]


def answer_lines(question: Question, task_id: str) -> list[str]:
    """Command lines that answer it, the first of them with yes."""
    command = f"patchyard tasks answer {task_id} {id_of(question)}"
    match question:
        case ExecApprovalRequest() | PatchApprovalRequest():
            return [f"{command} accept", f"{command} decline"]
        case BudgetRequest():
            return [f"{command} accept", f"{command} decline", f"{command} accept --budget {question.budget.value}=LIMIT"]
        case RequestUserInput():
            return [f"{command} {' '.join(_place(one) for one in question.questions)}"]
        case _:
            assert_never(question)


def proposed(question: BudgetRequest) -> str:
    """`400 model requests`: what accepting sets."""
    return ", ".join(f"{figure(limit)} {UNITS[name]}" for name, limit in question.proposed.named().items())


def used_of(question: BudgetRequest) -> str:
    """`200 of 200 model requests, 12 of 3600 seconds of wall time`."""
    return ", ".join(f"{figure(meter.used)} of {figure(meter.limit)} {UNITS[meter.budget]}" for meter in question.meters)


def _why(reason: str | None) -> list[Shown]:
    return [Shown(" ", f"  why: {one_line(reason, 200)}", "dim")] if reason else []


def _place(one: UserQuestion) -> str:
    return "NUMBER" if one.options else "'ANSWER'"
