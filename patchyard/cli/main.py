"""`patchyard`: the commands, and the one place where errors become messages and exit codes."""

import sys
from typing import NoReturn

import click

from patchyard import __version__
from patchyard.cli.apply_patch import apply_patch
from patchyard.cli.commands.approvals import approvals
from patchyard.cli.commands.fix import exec_command, fix
from patchyard.cli.commands.records import rollout, tail, trace
from patchyard.cli.commands.replay import replay
from patchyard.cli.commands.service import doctor, down, status, up
from patchyard.cli.commands.tasks import tasks
from patchyard.cli.context import examples, stderr
from patchyard.cli.errors import CliError, ExitCode
from patchyard.client import InvalidRequest, PatchyardError, Unauthorized

_EXAMPLES = examples(
    'patchyard fix . --issue "parse() crashes on an empty file" --verify "pytest -q"',
    "patchyard fix https://example.org/repo.git --base v1.2 --issue @issue.md --output fix.patch",
    'patchyard exec "Which module parses the configuration?"',
    "patchyard tasks list",
)


class _InOrder(click.Group):
    """Lists commands in the order of a day's work, not of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See click.Group.list_commands."""
        return list(self.commands)


@click.group(cls=_InOrder, epilog=_EXAMPLES, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="patchyard %(version)s")
def cli() -> None:
    """Run coding agents in ephemeral containers and get verified patches."""


for _command in (fix, exec_command, tasks, approvals, tail, trace, rollout, up, down, status, doctor, apply_patch, replay):
    cli.add_command(_command)


def main() -> NoReturn:
    """Run the command line of this process."""
    sys.exit(run(sys.argv[1:]))


def run(args: list[str]) -> int:
    """Run a command line; the exit code (behaviour.md §1)."""
    try:
        code = cli.main(args, prog_name="patchyard", standalone_mode=False)
        return int(code) if isinstance(code, int) else ExitCode.OK
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except CliError as error:
        _complain(error.message, error.remedy, error.details)
        return error.exit_code
    except PatchyardError as error:
        return _refused(error)
    except (click.Abort, KeyboardInterrupt):
        stderr().print("Interrupted.")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        sys.stderr.close()
        return ExitCode.OK


def _refused(error: PatchyardError) -> int:
    remedy = error.remedy
    if isinstance(error, Unauthorized):
        remedy = "Set PATCHYARD_TOKEN, or use the PATCHYARD_HOME of the service, whose file `token` holds it."
    request = f"request {error.request_id}" if error.request_id and not isinstance(error, InvalidRequest) else None
    _complain(error.message, remedy, request)
    return ExitCode.USAGE if isinstance(error, InvalidRequest) and error.code == "invalid_request" else ExitCode.FAILED


def _complain(message: str, remedy: str | None, details: str | None) -> None:
    console = stderr()
    console.print("Error:", style="bold red", end=" ")
    console.print(message, markup=False)
    if details:
        for line in details.splitlines():
            console.print(f"  | {line}", style="dim", markup=False)
    if remedy:
        console.print("What to do:", style="bold", end=" ")
        console.print(remedy, markup=False)
