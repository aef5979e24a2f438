"""How commands end.

CliError           a message, its remedy, an exit code
+-- UsageError     2: the command line is wrong
+-- StartFailed    1: a process of `patchyard up` did not start
+-- AlreadyRunning 1: a second `patchyard up`
"""

from enum import IntEnum
from pathlib import Path


class ExitCode(IntEnum):
    """What a command's exit status means (behaviour.md §1)."""

    OK = 0
    FAILED = 1
    USAGE = 2
    BUDGET = 3
    VERIFICATION = 4
    INTERRUPTED = 130


class CliError(Exception):
    """The command can't go on."""

    exit_code = ExitCode.FAILED

    def __init__(self, message: str, *, remedy: str | None = None, details: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.details = details
        """Further lines, shown as they are (the end of a log)."""


class UsageError(CliError):
    """The command line is wrong."""

    exit_code = ExitCode.USAGE


class StartFailed(CliError):
    """A process did not start."""


class AlreadyRunning(CliError):
    """The service of this home runs already."""

    def __init__(self, pid: int | None, url: str | None, home: Path) -> None:
        super().__init__(
            f"Patchyard runs already for {home} (pid {pid or 'unknown'}{f', {url}' if url else ', still starting'}).",
            remedy="Use it as it is, stop it with `patchyard down`, or set another PATCHYARD_HOME and PATCHYARD_API_PORT.",
        )
        self.pid = pid
        self.url = url
