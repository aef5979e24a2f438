"""Tables: the doctor's checks, the parts of a service, tasks."""

import time
from collections.abc import Sequence

from rich.table import Table

from patchyard.cli.context import stdout
from patchyard.protocol.service import DoctorReport, Readiness
from patchyard.protocol.tasks import ArchiveSource, GitSource, NoSource, RepositorySource, TaskStatus, TaskView

from .text import amount, duration, money, one_line, safe

_MARKS = {"ok": ("ok", "green"), "warning": ("warning", "yellow"), "failed": ("FAILED", "bold red")}


def status_style(status: TaskStatus) -> str:
    """Colour of a state; the word itself is always shown too."""
    match status:
        case TaskStatus.SUCCEEDED:
            return "green"
        case TaskStatus.FAILED:
            return "red"
        case TaskStatus.CANCELLED | TaskStatus.WAITING:
            return "yellow"
        case TaskStatus.QUEUED | TaskStatus.RUNNING | TaskStatus.VERIFYING:
            return "cyan"


def print_checks(report: DoctorReport) -> None:
    """One line per check, the remedy below what is wrong."""
    console = stdout()
    width = max((len(check.name) for check in report.checks), default=0)
    for check in report.checks:
        word, style = _MARKS[check.status]
        console.print(f"{word:<8}", style=style, end="")
        console.print(f"{check.name:<{width}}  {safe(check.detail)}", markup=False)
        if check.remedy and check.status != "ok":
            console.print(f"{'':<8}{'':<{width}}  → {safe(check.remedy)}", markup=False)


def print_components(readiness: Readiness) -> None:
    """One line per part behind the API."""
    console = stdout()
    for part in readiness.components:
        word, style = _MARKS[part.state]
        console.print(f"  {word:<8}", style=style, end="")
        console.print(f"{part.name:<9} {safe(part.detail)}", markup=False)
        if part.remedy and part.state != "ok":
            console.print(f"{'':<20}→ {safe(part.remedy)}", markup=False)


def repository_name(source: RepositorySource) -> str:
    """A repository in a few words."""
    match source:
        case GitSource(url=url):
            return url.rstrip("/").rsplit("/", 1)[-1].removesuffix(".git")
        case ArchiveSource(format=form):
            return f"(uploaded {form})"
        case NoSource():
            return "–"


def print_tasks(tasks: Sequence[TaskView]) -> None:
    """A table, newest first."""
    table = Table(box=None, pad_edge=False)
    for column, least in (("TASK", 36), ("STATUS", 9), ("REASON", 9), ("REPOSITORY", 10), ("AGE", 7), ("TITLE", 8)):
        table.add_column(column, overflow="ellipsis", no_wrap=True, min_width=least)
    now = int(time.time() * 1000)
    for task in tasks:
        table.add_row(
            task.id,
            f"[{status_style(task.status)}]{task.status}[/]",
            safe(task.reason),
            one_line(repository_name(task.spec.repository), 24),
            duration(now - task.created_at),
            one_line(task.title, 48),
        )
    stdout().print(table)


def print_task(task: TaskView) -> None:
    """Everything that one wants to know of a task."""
    console = stdout()

    def line(name: str, value: str | None, style: str = "") -> None:
        if value:
            console.print(f"{name:<12}", style="dim", end="")
            console.print(value, style=style, markup=False)

    line("task", task.id)
    line("title", one_line(task.title, 100))
    reason = f" ({task.reason})" if task.reason != str(task.status) else ""
    line("status", f"{task.status}{reason}", status_style(task.status))
    if task.status is TaskStatus.WAITING and task.reason in ("approval", "user_input", "budget"):
        line("answer", f"patchyard tasks answer {task.id}", "bold")
    line("verified", {True: "yes", False: "no", None: "not asked" if task.spec.verify is None else "not yet"}[task.verified])
    line("repository", _repository(task))
    if task.patch is not None:
        line("patch", f"{task.patch.files} file(s), +{task.patch.insertions} −{task.patch.deletions}")
    if task.usage is not None:
        line("tokens", f"{amount(task.usage.input_tokens)} in, {amount(task.usage.output_tokens)} out")
        line("cost", money(task.cost_usd))
    if task.completed_at is not None:
        line("time", duration(task.completed_at - task.created_at))
    line("thread", task.thread_id)
    line("trace", task.trace_id)
    if task.error is not None:
        line("error", f"{task.error.code}: {safe(task.error.message)}", "red")
    if task.final_message:
        console.print()
        console.print(safe(task.final_message), markup=False)


def _repository(task: TaskView) -> str:
    base = f" at {task.spec.base}" if task.spec.base else ""
    source = task.spec.repository
    return f"{safe(source.url) if isinstance(source, GitSource) else repository_name(source)}{base}"
