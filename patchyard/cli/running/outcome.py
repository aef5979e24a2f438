"""From a task that ended to an exit code (behaviour.md §1)."""

from patchyard.cli.errors import ExitCode
from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.tasks import TaskStatus, TaskView


def exit_code_of(task: TaskView) -> ExitCode:
    """0 done (and verified where that was asked), 1 failed, 3 budget, 4 verification failed, 130 interrupted."""
    if task.status is TaskStatus.CANCELLED:
        return ExitCode.INTERRUPTED
    code = task.error.code if task.error else None
    if code is ErrorCode.BUDGET_EXCEEDED:
        return ExitCode.BUDGET
    if code is ErrorCode.INTERRUPTED:
        return ExitCode.INTERRUPTED
    if code is ErrorCode.VERIFICATION_FAILED:
        return ExitCode.VERIFICATION
    if task.status is not TaskStatus.SUCCEEDED:
        return ExitCode.FAILED
    if task.spec.verify is not None and task.patch is not None and task.verified is not True:
        return ExitCode.VERIFICATION
    return ExitCode.OK
