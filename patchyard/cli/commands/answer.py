"""`tasks answer`: the questions of a task's agent, answered in one line or one after the other at a terminal."""

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.text import Text

from patchyard.cli.context import examples, json_option, open_client, print_json, run, settings, stdout
from patchyard.cli.errors import ExitCode, UsageError
from patchyard.cli.render.questions import answer_lines, id_of, question_lines
from patchyard.cli.running.answers import Asked, Open, answer_to, asked_by, limits_of
from patchyard.cli.running.asking import can_ask
from patchyard.cli.running.dialogs import Reply, dialog_for
from patchyard.client import PatchyardClient
from patchyard.protocol.events import OpRejected, RequestUserInput
from patchyard.protocol.policies import BudgetLimits

_NOBODY = "No turn waits for an answer now."
_PATIENCE_S = 20.0
"""How long the command waits until the turn has taken the answer: with every slot in use that takes a while."""


@click.command(
    short_help="Answer what a task's agent asks.",
    epilog=examples(
        "patchyard tasks answer TASK",
        "patchyard tasks answer TASK accept",
        "patchyard tasks answer TASK accept --budget model_requests=400",
        "patchyard tasks answer TASK 2 'only the parser'",
        "patchyard tasks answer TASK QUESTION decline --message 'keep the build folder'",
    ),
)
@click.argument("task_id", metavar="TASK")
@click.argument("words", metavar="[QUESTION] [ANSWER]...", nargs=-1)
@click.option(
    "--budget", multiple=True, metavar="NAME=LIMIT", help="With accept: the limit to set; may be given several times."
)
@click.option("--message", default=None, metavar="TEXT", help="Tell the agent why.")
@click.option("--patch", is_flag=True, hidden=True, help="Not needed any more: the question says what it is about.")
@json_option
def answer(
    task_id: str, words: tuple[str, ...], budget: tuple[str, ...], message: str | None, patch: bool, as_json: bool
) -> int:
    """Answer what a task's agent asks. The first answer wins.

    Commands and patches: accept, accept-for-session, decline or cancel (which ends the turn). A budget that is used up: accept,
    decline (the turn ends with what it has) or cancel. Questions of the agent: one answer each, in their order, as the number of
    an option or in your own words. QUESTION is needed where several are open. Without ANSWER the open questions are shown, and
    asked at a terminal.
    """
    del patch
    return run(_answer(task_id, words, limits=limits_of(budget), message=message, as_json=as_json))


async def _answer(
    task_id: str, words: Sequence[str], *, limits: BudgetLimits | None, message: str | None, as_json: bool
) -> ExitCode:
    async with open_client(settings()) as client:
        task = await client.get_task(task_id)
        asked = await asked_by(client, task_id)
        if not words:
            return await _ask_here(client, task.thread_id, task_id, asked, as_json=as_json)
        if not asked.open:
            return _nobody(as_json=as_json)
        chosen, rest = _choose(asked, words)
        reply = answer_to(chosen.question, rest, limits=limits, message=message)
        return await _send(client, task.thread_id, reply, as_json=as_json)


class _Fate(NamedTuple):
    """What became of an answer."""

    taken: bool | None
    """None: nobody has looked at it yet."""
    reason: str | None = None


async def _send(client: PatchyardClient, thread_id: str, reply: Reply, *, as_json: bool) -> ExitCode:
    before = (await client.get_thread(thread_id)).next_ordinal - 1
    receipt = await client.submit(thread_id, reply)
    fate = _Fate(taken=False, reason=_NOBODY)
    if receipt.admission.type != "not_submitted":
        fate = await _fate_of(client, thread_id, receipt.submission_id, after=before)
    if as_json:
        print_json({**receipt.model_dump(mode="json"), **fate._asdict()})
    else:
        stdout().print("Answered." if fate.taken else fate.reason, markup=False)
    return ExitCode.FAILED if fate.taken is False else ExitCode.OK


async def _fate_of(client: PatchyardClient, thread_id: str, submission_id: str, *, after: int) -> _Fate:
    """Whether the answer was the first one: its own event tells."""
    events = client.thread_events(thread_id, after=after)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE_S), contextlib.aclosing(events):
            async for event in events:
                if event.submission_id == submission_id:
                    if isinstance(event.msg, OpRejected):
                        return _Fate(taken=False, reason=f"Not taken: {event.msg.message.rstrip('.')}.")
                    return _Fate(taken=True)
    return _Fate(taken=None, reason="Sent. The first answer counts, as soon as a worker takes the turn up.")


def _nobody(*, as_json: bool) -> ExitCode:
    if as_json:
        print_json({"questions": []})
    else:
        stdout().print(_NOBODY)
    return ExitCode.FAILED


class _Chosen(NamedTuple):
    """The question that is meant, and the words of its answer."""

    asked: Open
    words: Sequence[str]


def _choose(asked: Asked, words: Sequence[str]) -> _Chosen:
    by_id = {id_of(each.question): each for each in asked.open}
    first, *rest = words
    if first in by_id:
        return _Chosen(by_id[first], rest)
    if first in asked.closed:
        raise UsageError(f"The question {first} was answered already, or its turn has ended.", remedy=_open_ones(asked))
    if len(asked.open) > 1:
        raise UsageError(f"{len(asked.open)} questions are open: say which one is meant.", remedy=_open_ones(asked))
    only = next(iter(asked.open))
    if rest and not isinstance(only.question, RequestUserInput):
        raise UsageError(f"There is no question {first}.", remedy=_open_ones(asked))
    return _Chosen(only, words)


def _open_ones(asked: Asked) -> str:
    return f"Open: {', '.join(id_of(each.question) for each in asked.open)}."


async def _ask_here(client: PatchyardClient, thread_id: str, task_id: str, asked: Asked, *, as_json: bool) -> ExitCode:
    """Without an answer on the command line."""
    if as_json:
        questions: list[dict[str, Any]] = [each.question.model_dump(mode="json") for each in asked.open]
        print_json({"questions": questions})
        return ExitCode.OK
    if not asked.open:
        return _nobody(as_json=False)
    console, asks = stdout(), can_ask()
    for each in asked.open:
        if not asks:
            _show(console, each, task_id)
            continue
        reply = _talk(each)
        if reply is None:
            return ExitCode.FAILED
        await _send(client, thread_id, reply, as_json=False)
    return ExitCode.OK


def _show(console: Console, asked: Open, task_id: str) -> None:
    """A question, and the lines that answer it."""
    for line in question_lines(asked.question):
        console.print(Text(f"{line.mark} {line.text}", style=line.style))
    for number, command in enumerate(answer_lines(asked.question, task_id)):
        console.print(f"    {'         or' if number else 'answer with'}: {command}", markup=False)


def _talk(asked: Open) -> Reply | None:
    """Ask at the terminal; None: the input ended."""
    dialog = dialog_for(asked)
    text = dialog.prompt()
    while True:
        click.echo(text, nl=False)
        line = sys.stdin.readline()
        if not line:
            click.echo()
            return None
        said = dialog.take(line)
        if said.reply is not None:
            return said.reply
        text = said.text
