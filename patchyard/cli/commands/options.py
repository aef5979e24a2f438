"""Options that `fix` and `exec` share, and how their words become policies."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from patchyard.cli.errors import UsageError
from patchyard.cli.running.answers import limits_of
from patchyard.protocol.policies import (
    ApprovalMode,
    BudgetLimits,
    Budgets,
    DangerFullAccess,
    ReadOnly,
    SandboxPolicy,
    WorkspaceWrite,
)

F = TypeVar("F", bound=Callable[..., Any])

BUDGET_HELP = "Limit of model_requests, tool_calls, tokens, wall_time_s or cost_usd; may be given several times."
WHEN_SPENT_HELP = "When a budget is used up: ask for more, or end.  [default: end in a pipe, else as --approval says]"
_SANDBOXES = ("read-only", "workspace-write", "danger-full-access")


def run_options(*, sandbox: str, approval: ApprovalMode) -> Callable[[F], F]:
    """--sandbox, --approval, --model, --budget, --when-spent, --no-start, --no-wait, --detach."""

    def decorate(command: F) -> F:
        for option in (
            click.option("--detach", is_flag=True, help="Submit, print the task's id and return."),
            click.option("--no-wait", is_flag=True, help="Refuse at once when the queue is full, instead of waiting."),
            click.option("--no-start", is_flag=True, help="Refuse when no service runs, instead of starting one."),
            click.option("--when-spent", type=click.Choice(["ask", "end"]), default=None, help=WHEN_SPENT_HELP),
            click.option("--budget", multiple=True, metavar="NAME=LIMIT", help=BUDGET_HELP),
            click.option("--model", default=None, metavar="NAME", help="Model.  [default: the service's]"),
            click.option(
                "--approval",
                type=click.Choice([str(mode) for mode in ApprovalMode]),
                default=str(approval),
                show_default=True,
                help="When a person is asked.",
            ),
            click.option(
                "--sandbox",
                type=click.Choice(_SANDBOXES),
                default=sandbox,
                show_default=True,
                help="What the agent's commands may do.",
            ),
        ):
            command = option(command)
        return command

    return decorate


def budgets_of(words: tuple[str, ...], when_spent: Literal["ask", "end"] | None, *, attended: bool) -> Budgets:
    """What --budget and --when-spent say. `attended`: somebody can be asked; a script must not wait a day for an answer."""
    budgets = Budgets(when_spent=when_spent or (None if attended else "end"))
    return budgets.raised(limits_of(words) or BudgetLimits())


def sandbox_policy(word: str) -> SandboxPolicy:
    """The policy behind --sandbox."""
    match word:
        case "read-only":
            return ReadOnly()
        case "workspace-write":
            return WorkspaceWrite()
        case "danger-full-access":
            return DangerFullAccess()
        case _:
            raise UsageError(f"Unknown sandbox {word!r}.", remedy=f"Use one of {', '.join(_SANDBOXES)}.")


def text_or_file(value: str, option: str) -> str:
    """TEXT, the content of @FILE, or stdin for `-`. UsageError: not readable, or empty."""
    if value == "-":
        text = read_stdin()
    elif value.startswith("@"):
        text = _read(Path(value[1:]).expanduser(), option)
    else:
        text = value
    if not text.strip():
        raise UsageError(f"{option} is empty.", remedy="Say what is wrong or wanted: as text, as @FILE, or as - for stdin.")
    return text


def _read(path: Path, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{option}: {path} can't be read: {error.strerror}.", remedy="Name a readable text file.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{option}: {path} is not UTF-8 text.", remedy="Name a text file.") from error


def read_stdin() -> str:
    """All of stdin as text."""
    return sys.stdin.buffer.read().decode("utf-8", "replace")
