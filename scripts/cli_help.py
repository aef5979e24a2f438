"""The help of every command, as a person sees it: docs/cli.md."""

from collections.abc import Iterator

import click

from patchyard.cli.main import cli

WIDTH = 100
INTRO = """# Commands

Generated from the program's own help (`make generate`). Exit codes everywhere: 0 done (and verified where that was asked),
1 failed, 2 wrong command line, 3 budget used up, 4 verification failed, 130 interrupted.
"""


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """The command and all below it, in the order in which they are listed."""
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            child = command.get_command(click.Context(command), name)
            if child is not None and not child.hidden:
                yield from commands(child, f"{path} {name}")


def render() -> str:
    """The page."""
    parts = [INTRO]
    for path, command in commands(cli, "patchyard"):
        context = click.Context(command, info_name=path, terminal_width=WIDTH, max_content_width=WIDTH)
        parts.append(f"## {path}\n\n```\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)
