"""Shows a task's events as they come: plan, commands, patches, messages, verification."""

from collections.abc import Callable
from typing import assert_never

from rich.console import Console
from rich.text import Text

from patchyard.protocol import events, items
from patchyard.protocol.budgets import UNITS, BudgetRequest, figure
from patchyard.protocol.events import Event
from patchyard.protocol.items import ItemStatus

from .diff import diff_text
from .questions import Question, answer_lines, question_lines
from .rules import rule_text
from .text import amount, duration, one_line, safe

_OUTPUT_LINES = 6
"""Lines of a command's output that are shown; the rollout has all of them."""
_PLAN_MARKS = {"completed": "✔", "in_progress": "▸", "pending": "·"}


class StreamView:
    """Writes events to a console. Deltas are shown live on a terminal only; piped output has each message once, whole."""

    def __init__(
        self,
        console: Console,
        *,
        task_id: str,
        live: bool,
        messages: Callable[[str], None] | None = None,
        ending: bool = True,
        asks: bool = False,
    ) -> None:
        self._console = console
        self._task_id = task_id
        self._live = live
        self._messages = messages
        """Takes the whole text of agent messages instead of the console."""
        self._ending = ending
        """Whether to say why a turn failed; not where a summary does so right afterwards."""
        self._asks = asks
        """Whether questions are asked here by somebody else, who prints them."""
        self._open: str | None = None
        """Item whose text is being typed at the end of the screen."""
        self._typed: dict[str, int] = {}

    def show(self, event: Event) -> None:
        """Show one event."""
        msg = event.msg
        match msg:
            case events.ItemStarted():
                self._started(msg.item)
            case events.ItemCompleted():
                self._completed(msg.item)
            case events.AgentMessageDelta():
                self._type(msg.item_id, msg.delta)
            case events.PlanUpdate():
                self._plan(msg.plan)
            case events.TurnStarted() | events.TurnRecovered() | events.TurnParked():
                self._turn(msg)
            case events.TurnCompleted() | events.TurnInterrupted() | events.TurnFailed():
                self._turn_end(msg)
            case events.WorkspacePrepared() | events.SetupStarted() | events.SetupCompleted():
                self._workspace(msg)
            case events.PatchProduced() | events.VerificationStarted() | events.VerificationCompleted():
                self._result(msg)
            case events.ExecApprovalRequest() | events.PatchApprovalRequest() | events.RequestUserInput() | BudgetRequest():
                self._question(msg)
            case (
                events.Warning_()
                | events.ErrorEvent()
                | events.StreamError()
                | events.OpRejected()
                | events.HookCompleted()
                | events.RequestResolved()
                | events.ApprovalRemembered()
            ):
                self._notice(msg)
            case (
                events.SessionConfigured()
                | events.ThreadClosed()
                | events.ThreadSettingsApplied()
                | events.OpApplied()
                | events.TaskStatusChanged()
                | events.TokenCount()
                | events.HookStarted()
                | events.ReviewCompleted()
                | events.ReasoningDelta()
                | events.ToolCallInputDelta()
                | events.ExecOutputDelta()
                | events.PatchProgress()
                | events.SetupOutputDelta()
            ):
                return
            case _:
                assert_never(msg)

    # --- items

    def _started(self, item: items.Item) -> None:
        if isinstance(item, items.CommandExecutionItem) and self._live:
            self._line("$", one_line(item.command, 160), "bold")

    def _completed(self, item: items.Item) -> None:
        match item:
            case items.AgentMessageItem():
                self._message(item)
            case items.CommandExecutionItem():
                self._command(item)
            case items.FileChangeItem():
                self._patch(item)
            case items.ReasoningItem():
                if item.summary:
                    self._line("~", one_line(item.summary[0], 160), "dim italic")
            case items.McpToolCallItem():
                ending = "" if item.status is ItemStatus.COMPLETED else f" ({item.status})"
                self._line("⚙", f"{safe(item.server)}.{safe(item.tool)}{ending} {duration(item.duration_ms)}")
            case items.ContextCompactionItem():
                self._line("⟲", "the history was compacted", "dim")
            case items.SubAgentItem():
                self._line("⑂", f"{item.action} agent {one_line(item.message or ', '.join(item.agents), 120)}", "dim")
            case items.UserMessageItem() | items.PlanItem():
                return
            case _:
                assert_never(item)

    def _message(self, item: items.AgentMessageItem) -> None:
        text = safe(item.text).strip()
        typed = self._typed.pop(item.id, 0)
        if typed and self._open == item.id:
            self._close_line()
        elif text and self._messages is None:
            self._close_line()
            self._console.print(text, markup=False)
        if text and self._messages is not None:
            self._messages(text)

    def _type(self, item_id: str, delta: str) -> None:
        if not self._live or self._messages is not None:
            return
        if self._open != item_id:
            self._close_line()
            self._open = item_id
        self._typed[item_id] = self._typed.get(item_id, 0) + len(delta)
        self._console.print(safe(delta), markup=False, end="")

    def _close_line(self) -> None:
        if self._open is not None:
            self._open = None
            self._console.print()

    def _command(self, item: items.CommandExecutionItem) -> None:
        if not self._live:
            self._line("$", one_line(item.command, 160), "bold")
        output = safe(item.aggregated_output or "").rstrip().splitlines()
        hidden = len(output) - _OUTPUT_LINES
        if hidden > 0:
            self._console.print(f"    … {hidden} more line(s)", style="dim", markup=False)
        for line in output[-_OUTPUT_LINES:]:
            self._console.print(f"    {line[:400]}", style="dim", markup=False)
        if item.process_id is not None and item.exit_code is None:
            self._line(" ", f"  runs on in the background as session {item.process_id}", "dim")
            return
        good = item.exit_code == 0
        how = f"exit {item.exit_code}" if item.exit_code is not None else str(item.status)
        took = "" if item.duration_ms is None else f" in {duration(item.duration_ms)}"
        self._line("✔" if good else "✘", how + took, "green" if good else "red")

    def _patch(self, item: items.FileChangeItem) -> None:
        if item.status is not ItemStatus.COMPLETED:
            touched = ", ".join(safe(change.path) for change in item.changes) or "it could not be read"
            self._line("✘", f"patch {item.status}: {touched}", "red")
            if item.error is not None:
                self._console.print(_indented(item.error), style="dim", markup=False)
            return
        for change in item.changes:
            moved = f" → {safe(change.move_path)}" if change.move_path else ""
            self._line("±", f"{change.kind} {safe(change.path)}{moved}", "bold")
            self._console.print(diff_text(change), end="")

    def _plan(self, plan: tuple[items.PlanStep, ...]) -> None:
        self._line("☰", "plan", "bold")
        for step in plan:
            style = {"completed": "dim", "in_progress": "bold", "pending": ""}[step.status]
            self._console.print(f"    {_PLAN_MARKS[step.status]} {one_line(step.step, 160)}", style=style, markup=False)

    # --- turn and task

    def _turn(self, msg: events.TurnStarted | events.TurnRecovered | events.TurnParked) -> None:
        match msg:
            case events.TurnStarted():
                waited = duration(max(0, msg.started_at - msg.submitted_at))
                self._line("●", f"turn started with {safe(msg.model)} after {waited} in the queue", "dim")
            case events.TurnRecovered():
                self._line("●", f"another worker goes on with the turn ({msg.reason})", "yellow")
            case events.TurnParked():
                self._line("●", f"the turn waits for: {msg.reason}", "yellow")

    def _turn_end(self, msg: events.TurnCompleted | events.TurnInterrupted | events.TurnFailed) -> None:
        if isinstance(msg, events.TurnFailed):
            if self._ending:
                self._line("✘", f"{msg.error.code}: {safe(msg.error.message)}", "red")
        elif isinstance(msg, events.TurnInterrupted):
            self._line("●", "the turn was interrupted; the work so far is kept", "yellow")

    def _workspace(self, msg: events.WorkspacePrepared | events.SetupStarted | events.SetupCompleted) -> None:
        match msg:
            case events.WorkspacePrepared():
                commit = f" at {msg.base_commit[:12]}" if msg.base_commit else ""
                self._line("●", f"workspace{commit} ready in {duration(msg.duration_ms)}", "dim")
            case events.SetupStarted():
                cached = " (from the cache)" if msg.cached else ""
                self._line("●", f"set-up: {one_line(msg.command, 120)}{cached}", "dim")
            case events.SetupCompleted():
                if msg.exit_code:
                    self._line("✘", f"set-up ended with exit {msg.exit_code}", "red")
                    self._console.print(_indented(msg.output_tail), style="dim", markup=False)

    def _result(self, msg: events.PatchProduced | events.VerificationStarted | events.VerificationCompleted) -> None:
        match msg:
            case events.PatchProduced():
                self._line("±", f"patch: {msg.patch.files} file(s), +{msg.patch.insertions} −{msg.patch.deletions}", "bold")
            case events.VerificationStarted():
                self._line("●", f"verifying in a fresh container (round {msg.round}): {one_line(msg.command, 120)}", "bold")
            case events.VerificationCompleted(result=result):
                if result.passed:
                    self._line("✔", f"verified in {duration(result.duration_ms)}", "bold green")
                    return
                why = f"exit {result.exit_code}"
                if result.error is not None:
                    why = result.error.message if self._ending else str(result.error.code)
                self._line("✘", f"verification failed: {safe(why)}", "bold red")
                self._console.print(_indented(result.output_tail), style="dim", markup=False)

    def _question(self, msg: Question) -> None:
        if self._asks:
            return  # it is printed where it is answered, in its turn
        for line in question_lines(msg):
            self._line(*line)
        for number, command in enumerate(answer_lines(msg, self._task_id)):
            self._line(" ", f"  {'         or' if number else 'answer with'}: {command}", "dim")

    def _notice(
        self,
        msg: events.Warning_
        | events.ErrorEvent
        | events.StreamError
        | events.OpRejected
        | events.HookCompleted
        | events.RequestResolved
        | events.ApprovalRemembered,
    ) -> None:
        match msg:
            case events.Warning_():
                self._line("!", safe(msg.message), "yellow")
            case events.ErrorEvent():
                self._line("✘", f"{msg.error.code}: {safe(msg.error.message)}", "red")
            case events.StreamError():
                text = f"{one_line(msg.message, 200)}; in {duration(msg.retry_in_ms)}"
                self._line("!", text, "yellow")
            case events.OpRejected():
                self._line("!", f"{msg.op} was refused: {safe(msg.message)}", "yellow")
            case events.HookCompleted():
                if msg.outcome != "ok":
                    whose = f"{msg.source} hook" if msg.source else "hook"
                    why = one_line(msg.message or msg.command, 160)
                    self._line("!", f"{whose} {safe(msg.event)} {msg.outcome}: {why}", "yellow")
            case events.RequestResolved():
                limits = {} if msg.budgets is None else msg.budgets.named()
                more = ", ".join(f"{figure(limit)} {UNITS[name]}" for name, limit in limits.items())
                self._line("●", f"answered: {msg.decision}{f' ({more})' if more else ''}", "dim")
            case events.ApprovalRemembered():
                what = "; ".join(one_line(rule_text(rule), 80) for rule in msg.rules)
                self._line("●", f"remembered for {safe(msg.repository)}: {what} (see `patchyard approvals list`)", "dim")

    def _line(self, mark: str, text: str, style: str = "") -> None:
        self._close_line()
        self._console.print(Text(f"{mark} {text}", style=style))


def _indented(text: str) -> str:
    return "\n".join(f"    {line[:400]}" for line in safe(text).rstrip().splitlines()[-20:])


def usage_line(input_tokens: int, cached: int, output: int) -> str:
    """`12.3k in (8.0k cached), 1.2k out`."""
    return f"{amount(input_tokens)} in ({amount(cached)} cached), {amount(output)} out"
