"""Questions of the agent, answered at the terminal: the first answer wins, whoever gives it."""

import asyncio
import contextlib
import os
import sys
import termios
from collections.abc import Awaitable, Callable

from rich.console import Console

from patchyard.client import PatchyardError
from patchyard.protocol.approvals import SessionScope
from patchyard.protocol.events import Event, ExecApprovalRequest, PatchApprovalRequest, RequestResolved
from patchyard.protocol.ops import ApprovalDecision, ExecApproval, PatchApproval

Question = ExecApprovalRequest | PatchApprovalRequest
Answer = ExecApproval | PatchApproval

_PROMPT = "  [y]es, [n]o, [a]lways {scope}, [c]ancel the turn? "
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


def can_ask() -> bool:
    """Whether somebody sits at both ends of this command."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class Asker:
    """Asks one open question after the other while the events go on. Use it as `with`, inside the loop."""

    def __init__(self, console: Console, send: Callable[[Answer], Awaitable[bool]], *, fd: int) -> None:
        self._console = console
        self._send = send
        """Submits an answer; False when nobody waits for it any more."""
        self._fd = fd
        """The terminal, in line mode: readable when a line is there."""
        self._open: dict[str, Question] = {}
        self._prompted: str | None = None
        self._sending: set[asyncio.Task[None]] = set()

    def __enter__(self) -> "Asker":
        return self

    def __exit__(self, *_: object) -> None:
        self._close_prompt()
        for task in self._sending:
            task.cancel()

    def take(self, event: Event) -> None:
        """Note a question, or that one was answered."""
        match event.msg:
            case ExecApprovalRequest() | PatchApprovalRequest():
                self._open[event.msg.approval_id] = event.msg
            case RequestResolved():
                self._open.pop(event.msg.request_id, None)
                if self._prompted == event.msg.request_id:
                    self._close_prompt()
            case _:
                return
        self._prompt()

    def _prompt(self) -> None:
        if self._prompted is None and self._open:
            self._prompted = next(iter(self._open))
            with contextlib.suppress(termios.error):
                termios.tcflush(self._fd, termios.TCIFLUSH)  # what was typed before the question is no answer to it
            scope = _SCOPES[self._open[self._prompted].session_scope]
            self._console.print(_PROMPT.format(scope=scope), style="bold yellow", markup=False, end="")
            asyncio.get_running_loop().add_reader(self._fd, self._line_came)

    def _close_prompt(self) -> None:
        if self._prompted is not None:
            self._prompted = None
            asyncio.get_running_loop().remove_reader(self._fd)

    def _line_came(self) -> None:
        data = os.read(self._fd, 4096)
        question = self._open.get(self._prompted or "")
        if question is None or not data:  # an end of input: whoever has the printed command may still answer
            self._close_prompt()
            return
        decision = _DECISIONS.get(data.decode("utf-8", "replace").strip().lower())
        if decision is None:
            self._console.print("  Please answer y, n, a or c:", markup=False, end=" ")
            return
        self._close_prompt()
        del self._open[question.approval_id]
        task = asyncio.ensure_future(self._answer(question, decision))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        self._prompt()

    async def _answer(self, question: Question, decision: ApprovalDecision) -> None:
        kind = ExecApproval if isinstance(question, ExecApprovalRequest) else PatchApproval
        try:
            taken = await self._send(kind(approval_id=question.approval_id, decision=decision))
        except PatchyardError as error:
            self._console.print(f"  The answer did not arrive: {error}", style="red", markup=False)
            self._open[question.approval_id] = question
            with contextlib.suppress(RuntimeError):
                self._prompt()
            return
        if not taken:
            self._console.print("  No turn waits for this answer any more.", style="dim", markup=False)
