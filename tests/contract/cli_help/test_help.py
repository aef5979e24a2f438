"""The command line that scripts were written for."""

from pathlib import Path

import click

from patchyard.cli.main import cli
from scripts.cli_help import commands, render

ROOT = Path(__file__).resolve().parents[3]

COMMANDS = {
    "fix",
    "exec",
    "tasks list",
    "tasks show",
    "tasks cancel",
    "tasks patch",
    "tasks answer",
    "approvals list",
    "approvals revoke",
    "tail",
    "trace",
    "rollout cat",
    "up",
    "down",
    "status",
    "doctor",
    "apply-patch",
    "replay serve",
}
FIX_OPTIONS = {
    "--issue",
    "--base",
    "--setup",
    "--verify",
    "--verify-overlay",
    "--output",
    "--sandbox",
    "--approval",
    "--model",
    "--budget",
    "--when-spent",
    "--json",
    "--no-start",
    "--no-wait",
    "--detach",
}


def test_the_help_is_the_one_in_git() -> None:
    assert render() == (ROOT / "docs" / "cli.md").read_text(), "the command line changed: run `make generate`"


def test_the_commands_and_the_options_of_the_main_job() -> None:
    found = dict(commands(cli, "patchyard"))
    leaves = {path.removeprefix("patchyard ") for path, command in found.items() if not isinstance(command, click.Group)}
    assert leaves == COMMANDS
    fix = {name for option in found["patchyard fix"].params for name in option.opts if name.startswith("--")}
    assert fix == FIX_OPTIONS


def test_every_command_but_the_raw_ones_speaks_json() -> None:
    """`patch` and `rollout cat` print what a program reads anyway; `apply-patch` copies a recorded tool."""
    raw = {"tasks patch", "rollout cat", "apply-patch", "replay serve"}
    for path, command in commands(cli, "patchyard"):
        name = path.removeprefix("patchyard ")
        if not isinstance(command, click.Group) and name not in raw:
            assert any("--json" in option.opts for option in command.params), name
