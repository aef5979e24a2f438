"""`tail`, `rollout cat`, `trace`: what happened in a task, live and afterwards."""

import sys
from typing import Any

import click

from patchyard.cli.context import examples, json_option, notice, open_client, print_json, run, settings, stdout
from patchyard.cli.errors import ExitCode
from patchyard.cli.render.stream import StreamView
from patchyard.cli.render.trace import trace_tree
from patchyard.cli.running.watch import Interrupts, watch_task


@click.command(
    short_help="Watch a task.", epilog=examples("patchyard tail TASK", "patchyard tail TASK --json | jq -r .msg.type")
)
@click.argument("task_id", metavar="TASK")
@click.option("--after", type=click.IntRange(min=0), default=None, metavar="ORDINAL", help="Only what came after this record.")
@click.option("--follow", is_flag=True, help="Go on after the turn's end, for follow-ups.")
@json_option
def tail(task_id: str, after: int | None, follow: bool, as_json: bool) -> int:
    """Watch a task from its start to its end; Ctrl-C stops watching, not the task."""

    async def watch() -> bool:
        async with open_client(settings()) as client:
            await client.get_task(task_id)
            console = stdout()
            view = StreamView(console, task_id=task_id, live=console.is_terminal)
            with Interrupts() as interrupts:
                if not as_json:
                    notice("Ctrl-C stops watching; the task goes on.")
                return await watch_task(
                    client,
                    task_id,
                    (lambda event: click.echo(event.model_dump_json())) if as_json else view.show,
                    interrupts=interrupts,
                    after=after,
                    until="never" if follow else None,
                    cancel_on_interrupt=False,
                )

    return ExitCode.INTERRUPTED if run(watch()) else ExitCode.OK


@click.group()
def rollout() -> None:
    """Read the durable record of a task."""


@rollout.command(
    "cat", epilog=examples("patchyard rollout cat TASK | jq -c 'select(.type == \"model_request\") | .payload.usage'")
)
@click.argument("task_id", metavar="TASK")
def cat(task_id: str) -> None:
    """Print a task's record as JSON lines."""

    async def copy() -> None:
        async with open_client(settings()) as client:
            async for piece in client.rollout(task_id):
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()

    run(copy())


@click.command(short_help="Show where a task's time went.")
@click.argument("task_id", metavar="TASK")
@json_option
def trace(task_id: str, as_json: bool) -> None:
    """Show where a task's time went: queue, model requests, commands, verification, as a tree."""

    async def ask() -> dict[str, Any]:
        async with open_client(settings()) as client:
            return await client.trace(task_id)

    document = run(ask())
    if as_json:
        print_json(document)
    else:
        stdout().print(trace_tree(document))
