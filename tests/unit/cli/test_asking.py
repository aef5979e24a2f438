"""Questions at a terminal and on a command line. The terminal is a real one: the other end of a pseudo-terminal."""

import asyncio
import io
import os
import pty
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from rich.console import Console

from patchyard.cli.errors import UsageError
from patchyard.cli.render.stream import StreamView
from patchyard.cli.running.answers import AskedFold, answer_to, limits_of
from patchyard.cli.running.asking import Asker
from patchyard.client import PatchyardError
from patchyard.protocol.budgets import BudgetMeter, BudgetRequest
from patchyard.protocol.events import (
    Event,
    ExecApprovalRequest,
    PatchApprovalRequest,
    RequestResolved,
    RequestUserInput,
    TurnInterrupted,
    TurnParked,
    UserQuestion,
    Warning_,
)
from patchyard.protocol.model_items import TokenUsage
from patchyard.protocol.ops import BudgetAnswer, ExecApproval, Interrupt, PatchApproval, UserInputAnswer
from patchyard.protocol.policies import BudgetLimits
from tests.waiting import WAIT_S

COMMAND = ExecApprovalRequest(approval_id="A1", item_id="i", command=("rm", "x"), cwd="/w")
PATCH = PatchApprovalRequest(approval_id="A2", item_id="i", changes=())
BUDGET = BudgetRequest(
    request_id="B1",
    budget="model_requests",
    used=200,
    limit=200,
    proposed=BudgetLimits(model_requests=400),
    meters=(BudgetMeter(budget="model_requests", used=200, limit=200), BudgetMeter(budget="cost_usd", used=0.5, limit=3)),
)
COLOUR = UserQuestion(id="colour", header="Colour", question="Which one?", options=("red", "blue"))
WHY = UserQuestion(id="why", header="", question="And why?")
INPUT = RequestUserInput(request_id="U1", questions=(COLOUR, WHY))


class Terminal:
    """An Asker at one end of a terminal, a person at the other."""

    def __init__(self, asker: Asker, person: int, console: Console, out: io.StringIO, sent: list[Any]) -> None:
        self.asker = asker
        self._console = console
        self.sent = sent
        self._person = person
        self._out = out

    @property
    def text(self) -> str:
        return self._out.getvalue()

    def show(self, msg: Any) -> None:
        view = StreamView(self._console, task_id="T", live=True, asks=True)
        self.asker.show(Event(tenant_id="default", thread_id="t", turn_id="turn-1", msg=msg), view.show)

    def type(self, text: str) -> None:
        os.write(self._person, text.encode())

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not holds():
                await asyncio.sleep(0)


@asynccontextmanager
async def terminal(*, taken: bool = True, error: PatchyardError | None = None) -> AsyncIterator[Terminal]:
    person, ours = pty.openpty()
    out, sent = io.StringIO(), []

    async def send(reply: Any) -> bool:
        sent.append(reply)
        if error is not None and len(sent) == 1:
            raise error
        return taken

    try:
        console = Console(file=out, width=200, highlight=False, soft_wrap=True)
        with Asker(console, send, fd=ours, task_id="T") as asker:
            yield Terminal(asker, person, console, out, sent)
    finally:
        os.close(person)
        os.close(ours)


async def answered(question: Any, *lines: str) -> Terminal:
    async with terminal() as at:
        at.show(question)
        for line in lines:
            before = len(at.text)
            at.type(line + "\n")
            await at.until(lambda before=before: at.sent or len(at.text) > before)
        await at.until(lambda: at.sent)
        return at


@pytest.mark.parametrize(
    ("question", "lines", "reply"),
    [
        (COMMAND, ["y"], ExecApproval(approval_id="A1", decision="accept")),
        (COMMAND, ["perhaps", "ALWAYS"], ExecApproval(approval_id="A1", decision="accept_for_session")),
        (PATCH, ["n"], PatchApproval(approval_id="A2", decision="decline")),
        (BUDGET, ["y"], BudgetAnswer(request_id="B1", decision="accept")),
        (BUDGET, ["no"], BudgetAnswer(request_id="B1", decision="decline")),
        (BUDGET, ["c"], BudgetAnswer(request_id="B1", decision="cancel")),
        (BUDGET, ["350"], BudgetAnswer(request_id="B1", decision="accept", budgets=BudgetLimits(model_requests=350))),
        (BUDGET, ["200", "2.5", "much", "201"], BudgetAnswer(request_id="B1", decision="accept", budgets=BudgetLimits(model_requests=201))),
        (INPUT, ["2", "it fits"], UserInputAnswer(request_id="U1", answers={"colour": ("blue",), "why": ("it fits",)})),
        (INPUT, ["", "3", "12"], UserInputAnswer(request_id="U1", answers={"colour": ("3",), "why": ("12",)})),
        (INPUT, ["red", "/cancel"], Interrupt(turn_id="turn-1")),
    ],
    ids=lambda value: getattr(value, "type", None) or ",".join(value),
)  # fmt: skip
def test_what_is_typed_becomes_the_answer(question: Any, lines: list[str], reply: Any) -> None:
    at = asyncio.run(answered(question, *lines))
    assert at.sent == [reply]


def test_each_question_of_the_agent_is_asked_in_its_turn() -> None:
    async def main() -> None:
        async with terminal() as at:
            at.show(INPUT)
            assert at.text.splitlines() == [
                "? [Colour] Which one? (1 of 2)",
                "    1  red",
                "    2  blue",
                "  a number from 1 to 2, or your own words (/cancel ends the turn): ",
            ]
            at.type("1\n")
            await at.until(lambda: "And why? (2 of 2)" in at.text)
            assert at.text.endswith("  your answer (/cancel ends the turn): ")

    asyncio.run(main())


@pytest.mark.parametrize("question", [COMMAND, BUDGET, INPUT], ids=lambda question: question.type)
def test_what_was_typed_before_the_question_is_no_answer(question: Any) -> None:
    async def main() -> None:
        async with terminal() as at:
            at.type("y\ny\n")
            at.show(question)
            for _ in range(100):
                await asyncio.sleep(0)
            assert at.sent == []
            at.type("/cancel\n" if question is INPUT else "c\n")
            await at.until(lambda: at.sent)

    asyncio.run(main())


def test_what_was_typed_before_the_second_question_is_no_answer_to_it() -> None:
    async def main() -> None:
        async with terminal() as at:
            at.show(INPUT)
            at.type("red\nbecause\n")
            await at.until(lambda: "And why?" in at.text)
            for _ in range(100):
                await asyncio.sleep(0)
            assert at.sent == []
            at.type("I like it\n")
            await at.until(lambda: at.sent)
            assert at.sent[0].answers == {"colour": ("red",), "why": ("I like it",)}

    asyncio.run(main())


def test_questions_are_asked_one_after_the_other() -> None:
    async def main() -> None:
        async with terminal() as at:
            at.show(COMMAND)
            at.show(BUDGET)
            assert "400 model requests" not in at.text
            at.type("y\n")
            await at.until(lambda: "400 model requests" in at.text)
            at.type("n\n")
            await at.until(lambda: len(at.sent) == 2)
            assert [reply.type for reply in at.sent] == ["exec_approval", "budget_answer"]

    asyncio.run(main())


def test_the_last_question_on_the_screen_is_the_one_that_is_answered() -> None:
    """Two commands are asked about at once: nobody shall read the second and say yes to the first."""
    other = COMMAND.model_copy(update={"approval_id": "A9", "command": ("curl", "y")})

    async def main() -> None:
        async with terminal() as at:
            at.show(COMMAND)
            at.show(other)
            assert "curl y" not in at.text
            at.show(Warning_(message="something else"))
            choices = "  [y]es, [n]o, [a]lways in this task, [c]ancel the turn? "
            assert at.text.splitlines()[-3:] == ["! something else", "? may this command run? rm x", choices]
            at.type("n\n")
            await at.until(lambda: at.text.endswith(f"? may this command run? curl y\n{choices}"))
            at.type("y\n")
            await at.until(lambda: len(at.sent) == 2)
            assert [(reply.approval_id, reply.decision) for reply in at.sent] == [("A1", "decline"), ("A9", "accept")]

    asyncio.run(main())


@pytest.mark.parametrize(
    "end",
    [RequestResolved(request_id="B1", decision="accept"), TurnInterrupted(usage=TokenUsage())],
    ids=lambda msg: msg.type,
)
def test_a_question_that_was_answered_elsewhere_is_not_asked_on(end: Any) -> None:
    async def main() -> None:
        async with terminal() as at:
            at.show(BUDGET)
            at.show(end)
            at.type("y\n")
            at.show(COMMAND)
            assert at.text.endswith("[c]ancel the turn? ")
            at.type("n\n")
            await at.until(lambda: at.sent)
            assert at.sent == [ExecApproval(approval_id="A1", decision="decline")]

    asyncio.run(main())


def test_a_park_does_not_end_the_asking() -> None:
    async def main() -> None:
        async with terminal() as at:
            at.show(BUDGET)
            at.show(TurnParked(reason="budget"))
            assert at.text.count("[y]es: 400 model requests") == 2
            at.type("y\n")
            await at.until(lambda: at.sent)

    asyncio.run(main())


def test_an_end_of_input_says_how_to_answer_later() -> None:
    async def main() -> None:
        async with terminal() as at:
            at.show(BUDGET)
            at.type("\x04")
            await at.until(lambda: "patchyard tasks answer T" in at.text)
            assert at.sent == []

    asyncio.run(main())


def test_an_answer_that_does_not_arrive_is_asked_for_again() -> None:
    async def main() -> None:
        async with terminal(error=PatchyardError("the service is away")) as at:
            at.show(BUDGET)
            at.type("y\n")
            await at.until(lambda: "did not arrive" in at.text)
            at.type("y\n")
            await at.until(lambda: len(at.sent) == 2)

    asyncio.run(main())


# --- on a command line


@pytest.mark.parametrize(
    ("question", "words", "limits", "reply"),
    [
        (COMMAND, ["accept-for-session"], [], ExecApproval(approval_id="A1", decision="accept_for_session")),
        (PATCH, ["decline"], [], PatchApproval(approval_id="A2", decision="decline")),
        (BUDGET, ["accept"], [], BudgetAnswer(request_id="B1", decision="accept")),
        (
            BUDGET,
            ["accept"],
            ["model_requests=300", "cost-usd=4.5"],
            BudgetAnswer(request_id="B1", decision="accept", budgets=BudgetLimits(model_requests=300, cost_usd=4.5)),
        ),
        (INPUT, ["1", "so"], [], UserInputAnswer(request_id="U1", answers={"colour": ("red",), "why": ("so",)})),
    ],
    ids=str,
)
def test_words_become_the_answer(question: Any, words: list[str], limits: list[str], reply: Any) -> None:
    assert answer_to(question, words, limits=limits_of(limits), message=None) == reply


@pytest.mark.parametrize(
    ("question", "words", "limits", "why"),
    [
        (COMMAND, ["yes"], [], "'yes' is no answer to this question"),
        (COMMAND, ["accept"], ["tokens=5"], "needs a question about a budget"),
        (BUDGET, ["accept-for-session"], [], "is no answer"),
        (BUDGET, ["accept"], ["model_requests=100"], "used up already (200)"),
        (BUDGET, ["accept"], ["tokens=100"], "no limit of tokens"),
        (BUDGET, ["decline"], ["model_requests=300"], "goes with `accept` only"),
        (BUDGET, ["accept"], ["requests=300"], "not NAME=LIMIT"),
        (BUDGET, ["accept"], ["model_requests=many"], "model_requests=many: not a whole number above 0"),
        (BUDGET, ["accept"], ["cost_usd=-1"], "not a number above 0"),
        (INPUT, ["red"], [], "2 answer(s) are wanted, 1 came"),
        (INPUT, ["red", " "], [], "There is no answer to: And why?"),
    ],
    ids=str,
)
def test_words_that_do_not_fit_are_refused(question: Any, words: list[str], limits: list[str], why: str) -> None:
    with pytest.raises(UsageError) as refused:
        answer_to(question, words, limits=limits_of(limits), message=None)
    assert why in refused.value.message
    assert refused.value.remedy


def test_what_is_open_is_read_from_the_record() -> None:
    fold = AskedFold()
    for msg in (COMMAND, RequestResolved(request_id="A1", decision="accept"), INPUT, BUDGET):
        fold.add(msg, "turn-1")
    asked = fold.result()
    assert [(each.question.type, each.turn_id) for each in asked.open] == [
        ("request_user_input", "turn-1"),
        ("budget_request", "turn-1"),
    ]
    assert asked.closed == {"A1"}
    fold.add(TurnInterrupted(usage=TokenUsage()), "turn-1")
    assert (fold.result().open, fold.result().closed) == ((), {"A1", "U1", "B1"})
