"""`fix` and `exec`: submit a task and show it to its end."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
from rich.console import Console

from patchyard.cli.commands.options import budgets_of, read_stdin, run_options, sandbox_policy, text_or_file
from patchyard.cli.context import (
    base_url,
    ensure_service,
    examples,
    json_option,
    notice,
    open_client,
    print_json,
    run,
    settings,
)
from patchyard.cli.errors import CliError, ExitCode, UsageError
from patchyard.cli.render.stream import StreamView
from patchyard.cli.render.summary import print_summary
from patchyard.cli.running.asking import Asker, can_ask
from patchyard.cli.running.dialogs import Reply
from patchyard.cli.running.outcome import exit_code_of
from patchyard.cli.running.source import git_facts, is_url, resolve_source, upload_overlay
from patchyard.cli.running.watch import Interrupts, watch_task
from patchyard.client import NotFound, PatchyardClient, PatchyardError
from patchyard.protocol.events import Event
from patchyard.protocol.policies import ApprovalMode, Budgets, SandboxPolicy
from patchyard.protocol.tasks import NoSource, RepositorySource, SetupSpec, TaskCreateResponse, TaskSpec, TaskView, VerifySpec
from patchyard.settings import Settings

_RESULT_S = 60.0
"""How long the result of a task that has ended is asked for."""


@dataclass(frozen=True)
class Job:
    """What the command line asked for."""

    repo: str | None
    """None: no repository."""
    instruction: str
    untrusted: bool
    base: str | None
    setup: str | None
    verify: str | None
    overlay: Path | None
    sandbox: SandboxPolicy
    approval: ApprovalMode
    model: str | None
    budgets: Budgets


@dataclass(frozen=True)
class Manner:
    """How the command behaves."""

    as_json: bool
    no_start: bool
    no_wait: bool
    detach: bool
    output: Path | None = None
    answer_only: bool = False
    """`exec`: stdout has only the answer, everything else goes to stderr."""


@click.command(
    short_help="Fix an issue in a repository; get a verified patch.",
    epilog=examples(
        'patchyard fix . --issue "parse() crashes on an empty file" --verify "pytest -q"',
        "patchyard fix https://example.org/repo.git --base v1.2 --issue @issue.md --output fix.patch",
        'patchyard fix . --issue @issue.md --verify "pytest tests" --verify-overlay hidden-tests.tar',
    ),
)
@click.argument("repo")
@click.option("--issue", required=True, metavar="TEXT|@FILE|-", help="What is wrong: text, a file, or - for stdin.")
@click.option("--base", default=None, metavar="REF", help="Commit, tag or branch to start from.  [default: HEAD]")
@click.option("--setup", default=None, metavar="CMD", help="Runs once, with network, before the agent.")
@click.option("--verify", default=None, metavar="CMD", help="Must exit with 0 in a fresh container on base + patch.")
@click.option(
    "--verify-overlay",
    default=None,
    metavar="ARCHIVE",
    type=click.Path(path_type=Path),
    help="Tar archive laid over the tree before --verify runs (tests that the agent does not see).",
)
@click.option("--output", default=None, metavar="FILE", type=click.Path(path_type=Path), help="Write the patch to FILE.")
@run_options(sandbox="workspace-write", approval=ApprovalMode.ON_REQUEST)
@json_option
def fix(
    repo: str,
    issue: str,
    base: str | None,
    setup: str | None,
    verify: str | None,
    verify_overlay: Path | None,
    output: Path | None,
    sandbox: str,
    approval: str,
    model: str | None,
    budget: tuple[str, ...],
    when_spent: Literal["ask", "end"] | None,
    no_start: bool,
    no_wait: bool,
    detach: bool,
    as_json: bool,
) -> int:
    """Let an agent fix an issue in REPO (a folder or a URL); the result is a patch, verified if --verify is given.

    Exit codes: 0 done and verified, 1 failed, 2 usage, 3 budget used up, 4 verification failed, 130 interrupted.
    """
    if verify_overlay is not None and verify is None:
        raise UsageError("--verify-overlay needs --verify.", remedy="Say which command checks the patch.")
    if output is not None and not output.absolute().parent.is_dir():
        raise UsageError(f"The folder of {output} does not exist.", remedy="Create it, or name another file.")
    job = Job(
        repo=repo,
        instruction=text_or_file(issue, "--issue"),
        untrusted=True,
        base=base,
        setup=setup,
        verify=verify,
        overlay=verify_overlay,
        sandbox=sandbox_policy(sandbox),
        approval=ApprovalMode(approval),
        model=model,
        budgets=budgets_of(budget, when_spent, attended=detach or can_ask()),
    )
    return _run_job(job, Manner(as_json=as_json, no_start=no_start, no_wait=no_wait, detach=detach, output=output))


@click.command(
    "exec",
    short_help="Ask an agent about this folder.",
    epilog=examples(
        'patchyard exec "Which module parses the configuration?"',
        "patchyard exec --no-repo - < question.md",
        'patchyard exec --sandbox workspace-write "Add type hints to utils.py"',
    ),
)
@click.argument("prompt", required=False)
@click.option("-C", "--cd", "folder", default=None, metavar="REPO", help="Folder or URL.  [default: the current folder]")
@click.option("--no-repo", is_flag=True, help="Start in an empty workspace.")
@run_options(sandbox="read-only", approval=ApprovalMode.NEVER)
@json_option
def exec_command(
    prompt: str | None,
    folder: str | None,
    no_repo: bool,
    sandbox: str,
    approval: str,
    model: str | None,
    budget: tuple[str, ...],
    when_spent: Literal["ask", "end"] | None,
    no_start: bool,
    no_wait: bool,
    detach: bool,
    as_json: bool,
) -> int:
    """Ask an agent. stdout gets its answer, stderr what it does; --json prints every event as a JSON line.

    PROMPT is the question or order; `-`, or no PROMPT in a pipe, reads it from stdin.
    The agent sees the current folder's repository, read-only unless --sandbox says otherwise.
    """
    job = Job(
        repo=None if no_repo else folder or run(_here()),
        instruction=_prompt(prompt),
        untrusted=False,
        base=None,
        setup=None,
        verify=None,
        overlay=None,
        sandbox=sandbox_policy(sandbox),
        approval=ApprovalMode(approval),
        model=model,
        budgets=budgets_of(budget, when_spent, attended=detach or can_ask()),
    )
    manner = Manner(as_json=as_json, no_start=no_start, no_wait=no_wait, detach=detach, answer_only=True)
    return _run_job(job, manner)


async def _here() -> str | None:
    """The repository of the current folder. A folder that is none stays out: it may be somebody's whole home."""
    facts = await git_facts(Path.cwd())
    return None if facts is None else str(facts.root)


def _prompt(prompt: str | None) -> str:
    if prompt is None and sys.stdin.isatty():
        raise UsageError("There is no PROMPT.", remedy='Give one: patchyard exec "…", or - to read it from stdin.')
    text = read_stdin() if prompt is None or prompt == "-" else prompt
    if not text.strip():
        raise UsageError("The prompt is empty.", remedy='Give one: patchyard exec "…".')
    return text


def _run_job(job: Job, manner: Manner) -> int:
    if job.overlay is not None and not job.overlay.is_file():
        raise UsageError(f"There is no file {job.overlay}.", remedy="Make one: tar cf overlay.tar -C FOLDER .")
    if job.repo is not None and not is_url(job.repo) and not Path(job.repo).expanduser().is_dir():
        raise UsageError(f"There is no folder {job.repo}.", remedy="Name an existing folder, or a repository by its URL.")
    config = settings()
    ensure_service(config, may_start=not manner.no_start)
    return run(_submit_and_watch(config, job, manner))


async def _submit_and_watch(config: Settings, job: Job, manner: Manner) -> int:
    started = time.monotonic()
    with Interrupts() as interrupts:
        async with open_client(config, wait_when_full=not manner.no_wait) as client:
            spec = await interrupts.unless(interrupts.first, _spec(client, job, service_url=base_url(config)))
            # From here on a first Ctrl-C is kept until there is a task that it can cancel.
            created = await interrupts.unless(interrupts.second, client.create_task(spec))
            if manner.detach:
                _say_submitted(created, manner)
                return ExitCode.OK
            with _printer(client, created, manner) as show:
                interrupted = await watch_task(client, created.task_id, show, interrupts=interrupts)
            task = await interrupts.unless(interrupts.second, _result_of(client, created.task_id))
            written = await _write_patch(client, task, manner.output)
    _show_result(task, manner, seconds=time.monotonic() - started, patch_file=written)
    if interrupted:
        notice(f"Look at it: patchyard tasks show {task.id}")
        return ExitCode.INTERRUPTED
    return exit_code_of(task)


async def _result_of(client: PatchyardClient, task_id: str) -> TaskView:
    """The task as it ended. A part of the service that is away just now is waited for: the work is done."""
    give_up_at = time.monotonic() + _RESULT_S
    told = False
    while True:
        try:
            return await client.get_task(task_id)
        except PatchyardError as error:
            if not error.retryable or time.monotonic() > give_up_at:
                raise
            if not told:
                notice(f"The result can't be read yet, trying again: {error.message}")
                told = True
        await asyncio.sleep(1)


def _say_submitted(created: TaskCreateResponse, manner: Manner) -> None:
    if manner.as_json:
        print_json(created)
    else:
        click.echo(created.task_id)
        notice(f"Watch it: patchyard tail {created.task_id}")


def _show_result(task: TaskView, manner: Manner, *, seconds: float, patch_file: Path | None) -> None:
    if not manner.as_json:
        print_summary(_side_console(manner), task, seconds=seconds, patch_file=patch_file)
    elif not manner.answer_only:
        print_json(
            {"type": "task", "task": task.model_dump(mode="json"), "patch_file": str(patch_file) if patch_file else None}
        )


def _side_console(manner: Manner) -> Console:
    return Console(file=sys.stderr if manner.answer_only else sys.stdout, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def _printer(client: PatchyardClient, created: TaskCreateResponse, manner: Manner) -> Iterator[Callable[[Event], None]]:
    """What is done with each event: printed, and at a terminal answered where it is a question."""
    if manner.as_json:
        yield lambda event: click.echo(event.model_dump_json())
        return
    console = _side_console(manner)
    console.print(f"task {created.task_id}", style="dim", markup=False)
    messages = click.echo if manner.answer_only else None
    asks = can_ask()
    view = StreamView(console, task_id=created.task_id, live=console.is_terminal, messages=messages, ending=False, asks=asks)
    if not asks:
        yield view.show
        return

    async def send(answer: Reply) -> bool:
        receipt = await client.submit(created.thread_id, answer)
        return receipt.admission.type != "not_submitted"

    with Asker(console, send, fd=sys.stdin.fileno(), task_id=created.task_id) as asker:
        yield lambda event: asker.show(event, view.show)


async def _spec(client: PatchyardClient, job: Job, *, service_url: str) -> TaskSpec:
    source: RepositorySource = NoSource()
    if job.repo is not None:
        source = await resolve_source(client, job.repo, service_url=service_url)
    overlay = await upload_overlay(client, job.overlay) if job.overlay is not None else None
    return TaskSpec(
        repository=source,
        base=job.base,
        instruction=job.instruction,
        instruction_untrusted=job.untrusted,
        model=job.model,
        budgets=job.budgets,
        setup=SetupSpec(command=job.setup) if job.setup else None,
        verify=VerifySpec(command=job.verify, overlay_artefact_id=overlay) if job.verify else None,
        approval=job.approval,
        sandbox=job.sandbox,
    )


async def _write_patch(client: PatchyardClient, task: TaskView, output: Path | None) -> Path | None:
    if output is None or task.patch is None:
        return None
    try:
        await asyncio.to_thread(output.write_bytes, await client.patch(task.id))
    except NotFound:
        return None
    except OSError as error:
        raise CliError(
            f"{output} can't be written: {error.strerror}.",
            remedy=f"The patch is kept: patchyard tasks patch {task.id} > FILE",
        ) from error
    return output
