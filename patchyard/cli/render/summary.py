"""The last lines of `fix` and `exec`."""

from pathlib import Path

from rich.console import Console
from rich.text import Text

from patchyard.protocol.tasks import TaskStatus, TaskView

from .report import status_style
from .stream import usage_line
from .text import duration, money, safe


def print_summary(console: Console, task: TaskView, *, seconds: float, patch_file: Path | None) -> None:
    """Status, verified, patch, tokens, cost, time, and what to do next."""
    console.print()
    reason = "" if task.reason in (str(task.status), "completed") else f" ({safe(task.reason)})"
    _line(console, "status", f"{task.status}{reason}", status_style(task.status))
    if task.error is not None and task.status is not TaskStatus.SUCCEEDED:
        _line(console, "error", f"{task.error.code}: {safe(task.error.message)}", "red")
    if task.spec.verify is not None:
        verified = {True: "yes", False: "no", None: "did not run"}[task.verified]
        _line(console, "verified", verified, "green" if task.verified else "red")
    if task.patch is not None:
        counts = f"{task.patch.files} file(s), +{task.patch.insertions} −{task.patch.deletions}"
        where = str(patch_file) if patch_file else f"patchyard tasks patch {task.id} | git apply"
        _line(console, "patch", f"{counts}: {where}", "bold")
    if task.usage is not None:
        usage = task.usage
        _line(console, "tokens", usage_line(usage.input_tokens, usage.cached_input_tokens, usage.output_tokens))
        _line(console, "cost", money(task.cost_usd))
    _line(console, "time", duration(round(seconds * 1000)))
    _line(console, "more", f"patchyard tasks show {task.id} · patchyard trace {task.id}", "dim")


def _line(console: Console, name: str, value: str, style: str = "") -> None:
    console.print(Text.assemble((f"{name:<10}", "dim"), (value, style)))
