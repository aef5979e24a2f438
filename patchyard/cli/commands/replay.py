"""`replay serve`: the scripted model server, as a process of its own."""

import os
import sys

import click

from patchyard.cli.context import examples


@click.group()
def replay() -> None:
    """Run a model server that answers from a script."""


@replay.command(
    "serve",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    add_help_option=False,
    epilog=examples(
        "patchyard replay serve --script steps.yaml --port 8765",
        "PATCHYARD_MODEL_BASE_URL=http://127.0.0.1:8765/v1 patchyard up",
    ),
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def serve(arguments: tuple[str, ...]) -> None:
    """Serve a script: `--script FILE [--port N]`."""
    # The server takes this process's place: signals and the exit code are its own.
    os.execv(sys.executable, [sys.executable, "-m", "patchyard.replay", "serve", *arguments])  # noqa: S606 - our own module
