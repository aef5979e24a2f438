"""The queue: submissions in, events out, one owner per thread. See docs/subsystems/queue.md."""

from ._backend import Backend
from ._channel import QueueThreadChannel, WaitingSubmission
from ._control import ControlReader
from ._core import CONTROL_PLACES, ORDINARY_PLACES, QueueCore
from ._types import (
    Claim,
    ClaimReason,
    CommittedLine,
    FireEntry,
    FlushCandidate,
    OpenText,
    ParentTurn,
    Problem,
    QueueHealth,
    ReapResult,
    Snapshot,
    Spent,
    ThreadRegistration,
    ThreadState,
    ThreadStatus,
)
from .errors import LeaseReleased, QueueError, QueueFull, QueueMisuse, QueueUnavailable, ThreadClosedError, ThreadNotFound

__all__ = [
    "CONTROL_PLACES",
    "ORDINARY_PLACES",
    "Backend",
    "Claim",
    "ClaimReason",
    "CommittedLine",
    "ControlReader",
    "FireEntry",
    "FlushCandidate",
    "LeaseReleased",
    "OpenText",
    "ParentTurn",
    "Problem",
    "QueueCore",
    "QueueError",
    "QueueFull",
    "QueueHealth",
    "QueueMisuse",
    "QueueThreadChannel",
    "QueueUnavailable",
    "ReapResult",
    "Snapshot",
    "Spent",
    "ThreadClosedError",
    "ThreadNotFound",
    "ThreadRegistration",
    "ThreadState",
    "ThreadStatus",
    "WaitingSubmission",
]
