"""Errors of the queue.

QueueError
├── QueueFull            512 submissions wait: try again after `retry_after_s`
├── QueueUnavailable     Redis can't be reached or refuses writes: nothing was accepted
├── ThreadClosedError    the thread takes no more submissions
├── ThreadNotFound       no such thread, or another tenant's
└── QueueMisuse          a caller broke the channel's rules (a gap in ordinals, a turn that is not active)

LeaseLost (agent.ports)
└── LeaseReleased        nothing is left to do and the lease was given back: a normal end
"""

from patchyard.agent.ports import LeaseLost
from patchyard.protocol.errors import ErrorCode, ErrorInfo


class QueueError(Exception):
    """The queue refused or could not do what was asked."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info


class QueueFull(QueueError):
    """Too many submissions wait in this thread. Nothing was accepted."""

    def __init__(self, waiting: int, *, retry_after_s: float = 1.0) -> None:
        text = f"{waiting} submissions wait in this thread already; try again in {retry_after_s:g} s."
        super().__init__(ErrorInfo.of(ErrorCode.QUEUE_FULL, text, retry_after_s=f"{retry_after_s:g}"))
        self.retry_after_s = retry_after_s


class QueueUnavailable(QueueError):
    """Redis can't be reached or refuses writes. A submission was not accepted, or repeating it with the same id is safe."""

    def __init__(self, reason: str) -> None:
        text = f"The queue is not available ({reason}). Try again; `patchyard doctor` says what is wrong with it."
        super().__init__(ErrorInfo.of(ErrorCode.QUEUE_UNAVAILABLE, text))


class ThreadClosedError(QueueError):
    """The thread was shut down."""

    def __init__(self, thread_id: str) -> None:
        text = f"Thread {thread_id} is closed and takes no more submissions. Start a new task."
        super().__init__(ErrorInfo.of(ErrorCode.THREAD_CLOSED, text, thread_id=thread_id))


class ThreadNotFound(QueueError):
    """The thread does not exist for this tenant."""

    def __init__(self, thread_id: str) -> None:
        text = f"There is no thread {thread_id}. Check the id; tasks are listed by `patchyard tasks list`."
        super().__init__(ErrorInfo.of(ErrorCode.NOT_FOUND, text, thread_id=thread_id))


class QueueMisuse(QueueError):
    """A caller broke the channel's rules; a fault of the program, not of the user."""

    def __init__(self, text: str) -> None:
        super().__init__(ErrorInfo.of(ErrorCode.INTERNAL, text))


class LeaseReleased(LeaseLost):
    """The thread has nothing to do and its lease was given back in the same step: end without error."""
