"""`tasks …`: list, show, cancel, patch, answer."""

import sys

import click

from patchyard.cli.commands.answer import answer
from patchyard.cli.context import examples, json_option, open_client, print_json, run, settings, stdout
from patchyard.cli.render.report import print_task, print_tasks
from patchyard.protocol.tasks import TaskListResponse, TaskStatus, TaskView


@click.group()
def tasks() -> None:
    """Look at tasks, cancel them, take their patches."""


@tasks.command("list", epilog=examples("patchyard tasks list --status failed", "patchyard tasks list --json | jq '.data[].id'"))
@click.option("--status", type=click.Choice([str(status) for status in TaskStatus]), default=None, help="Only these.")
@click.option("--repository", default=None, metavar="URL|PATH", help="Only tasks on this repository.")
@click.option("--search", "query", default=None, metavar="TEXT", help="Only tasks whose title or instruction holds TEXT.")
@click.option("--limit", type=click.IntRange(1, 200), default=20, show_default=True, help="Tasks on a page.")
@click.option("--cursor", default=None, metavar="CURSOR", help="Go on behind an earlier page.")
@json_option
def list_tasks(
    status: str | None, repository: str | None, query: str | None, limit: int, cursor: str | None, as_json: bool
) -> None:
    """List tasks, newest first."""

    async def ask() -> TaskListResponse:
        async with open_client(settings()) as client:
            return await client.list_tasks_page(
                status=TaskStatus(status) if status else None, repository=repository, query=query, cursor=cursor, limit=limit
            )

    page = run(ask())
    if as_json:
        print_json(page)
    elif not page.data:
        stdout().print('No tasks. Submit one: patchyard fix . --issue "…"', markup=False)
    else:
        print_tasks(page.data)
        if page.next_cursor:
            stdout().print(f"More: --cursor {page.next_cursor}", style="dim", markup=False)


@tasks.command("show")
@click.argument("task_id", metavar="TASK")
@json_option
def show_task(task_id: str, as_json: bool) -> None:
    """Show one task: its state, result, cost and final message."""
    task = run(_get(task_id))
    if as_json:
        print_json(task)
    else:
        print_task(task)


async def _get(task_id: str) -> TaskView:
    async with open_client(settings()) as client:
        return await client.get_task(task_id)


@tasks.command("cancel")
@click.argument("task_id", metavar="TASK")
@json_option
def cancel_task(task_id: str, as_json: bool) -> None:
    """Stop a task. One that has ended stays as it is; the work so far is kept."""

    async def ask() -> TaskView:
        async with open_client(settings()) as client:
            return await client.cancel_task(task_id)

    task = run(ask())
    if as_json:
        print_json(task)
    elif task.status is TaskStatus.CANCELLED:
        stdout().print(f"Task {task.id} is cancelled.", markup=False)
    elif task.status.is_terminal:
        stdout().print(f"Task {task.id} had ended already: {task.status}.", markup=False)
    else:
        stdout().print(f"Task {task.id} is being cancelled.", markup=False)


@tasks.command("patch", epilog=examples("patchyard tasks patch TASK | git apply"))
@click.argument("task_id", metavar="TASK")
def patch(task_id: str) -> None:
    """Print a task's patch."""

    async def ask() -> bytes:
        async with open_client(settings()) as client:
            return await client.patch(task_id)

    sys.stdout.buffer.write(run(ask()))
    sys.stdout.buffer.flush()


tasks.add_command(answer)
