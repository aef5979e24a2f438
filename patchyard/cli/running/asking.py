"""Questions of the agent, answered at the terminal: the first answer wins, whoever gives it."""

import asyncio
import contextlib
import os
import sys
import termios
from collections.abc import Awaitable, Callable

from rich.console import Console

from patchyard.cli.render.questions import id_of
from patchyard.client import PatchyardError
from patchyard.protocol.budgets import BudgetRequest
from patchyard.protocol.events import (
    Event,
    ExecApprovalRequest,
    PatchApprovalRequest,
    RequestResolved,
    RequestUserInput,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
)

from .answers import Open
from .dialogs import Dialog, Reply, dialog_for


def can_ask() -> bool:
    """Whether somebody sits at both ends of this command."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class Asker:
    """Asks one open question after the other while the events go on. Use it as `with`, inside the loop."""

    def __init__(self, console: Console, send: Callable[[Reply], Awaitable[bool]], *, fd: int, task_id: str) -> None:
        self._console = console
        self._send = send
        """Submits an answer; False when nobody waits for it any more."""
        self._fd = fd
        """The terminal, in line mode: readable when a line is there."""
        self._task_id = task_id
        self._open: dict[str, Open] = {}
        self._prompted: str | None = None
        self._dialog: Dialog | None = None
        self._sending: set[asyncio.Task[None]] = set()

    def __enter__(self) -> "Asker":
        return self

    def __exit__(self, *_: object) -> None:
        self._close_prompt()
        for task in self._sending:
            task.cancel()

    def show(self, event: Event, view: Callable[[Event], None]) -> None:
        """Let `view` show an event, and note a question, or that one was answered.

        What is shown while somebody is asked stands above the question, which is repeated below: the last that a person reads
        is what their answer goes to.
        """
        asked = self._dialog
        with self._console.capture() as captured:
            view(event)
        shown = captured.get()
        if shown and asked is not None:
            self._console.print()
        self._console.file.write(shown)
        self._console.file.flush()
        self._take(event)
        if asked is not None and self._dialog is asked and shown.endswith("\n"):
            self._print(asked.prompt())

    def _take(self, event: Event) -> None:
        match event.msg:
            case ExecApprovalRequest() | PatchApprovalRequest() | RequestUserInput() | BudgetRequest():
                self._open[id_of(event.msg)] = Open(event.msg, event.turn_id)
            case RequestResolved():
                self._open.pop(event.msg.request_id, None)
                if self._prompted == event.msg.request_id:
                    self._close_prompt()
            case TurnCompleted() | TurnFailed() | TurnInterrupted():
                self._open.clear()
                self._close_prompt()
            case _:
                return
        self._prompt()

    def _prompt(self) -> None:
        if self._prompted is None and self._open:
            self._prompted, asked = next(iter(self._open.items()))
            self._dialog = dialog_for(asked)
            self._forget_typed()
            self._print(self._dialog.prompt())
            asyncio.get_running_loop().add_reader(self._fd, self._line_came)

    def _forget_typed(self) -> None:
        """What was typed before the question is no answer to it."""
        with contextlib.suppress(termios.error):
            termios.tcflush(self._fd, termios.TCIFLUSH)

    def _print(self, text: str) -> None:
        self._console.print(text, style="bold yellow", markup=False, end="")

    def _close_prompt(self) -> None:
        if self._prompted is not None:
            self._prompted = self._dialog = None
            asyncio.get_running_loop().remove_reader(self._fd)

    def _line_came(self) -> None:
        data = os.read(self._fd, 4096)
        asked, dialog = self._open.get(self._prompted or ""), self._dialog
        if asked is None or dialog is None or not data:
            self._close_prompt()
            if not data:  # an end of input: somebody may still answer elsewhere
                text = f"\n  Not answered here. Later: patchyard tasks answer {self._task_id}"
                self._console.print(text, style="dim", markup=False)
            return
        said = dialog.take(data.decode("utf-8", "replace"))
        if said.reply is None:
            if said.asks_next:
                self._forget_typed()
            self._print(said.text)
            return
        self._close_prompt()
        del self._open[id_of(asked.question)]
        task = asyncio.ensure_future(self._answer(asked, said.reply))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        self._prompt()

    async def _answer(self, asked: Open, reply: Reply) -> None:
        try:
            taken = await self._send(reply)
        except PatchyardError as error:
            self._console.print(f"  The answer did not arrive: {error}", style="red", markup=False)
            self._open[id_of(asked.question)] = asked
            with contextlib.suppress(RuntimeError):
                self._prompt()
            return
        if not taken:
            self._console.print("  No turn waits for this answer any more.", style="dim", markup=False)
