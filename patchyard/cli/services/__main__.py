"""`python -m patchyard.cli.services`: the supervisor in the background. Loads neither the commands nor the SDK."""

import argparse
import asyncio
import sys

from patchyard.cli.errors import CliError
from patchyard.settings import load

from .background import notify_failed, notify_ready
from .process import report
from .supervisor import Supervisor


def main() -> int:
    """Run until it is stopped. What keeps it from starting is told through the pipe, and in the log."""
    parser = argparse.ArgumentParser(prog="python -m patchyard.cli.services", description=__doc__)
    parser.add_argument("--ready-fd", type=int, required=True, help="pipe that gets one JSON line when all is up")
    parser.add_argument("--workers", type=int, required=True)
    options = parser.parse_args()
    supervisor = Supervisor(load(), workers=options.workers, on_ready=lambda state: notify_ready(options.ready_fd, state))
    try:
        asyncio.run(supervisor.run())
    except CliError as error:
        report(f"{error.message} {error.remedy or ''}")
        notify_failed(options.ready_fd, error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
