"""What can be wrong with a rollout.

RolloutError            root; carries an ErrorInfo
├── LineInvalid         a line that is not a rollout line
├── OrdinalGap          a record is missing
└── SegmentConflict     two different records have the same number
"""

from patchyard.protocol.errors import ErrorCode, ErrorInfo


class RolloutError(Exception):
    """The record of a thread is damaged, or was used wrongly."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.info = ErrorInfo(code=ErrorCode.INTERNAL, message=message, retryable=False)


class LineInvalid(RolloutError):
    """A line is not a rollout line of this version."""


class OrdinalGap(RolloutError):
    """Records are missing between two that are there."""

    def __init__(self, expected: int, found: int, where: str = "the rollout") -> None:
        super().__init__(
            f"Record {expected} was expected in {where} but {found} came: records are missing or doubled. "
            "Keep the stored segments and the queue's stream as they are and report it."
        )
        self.expected = expected
        self.found = found


class SegmentConflict(RolloutError):
    """Two different records have the same number: the queue lost acknowledged records, or two threads share an id."""

    def __init__(self, ordinal: int, key: str) -> None:
        super().__init__(
            f"Record {ordinal} in {key} differs from the committed one. The queue has lost acknowledged records: check its "
            "durability settings with `patchyard doctor`; the stored segment is kept."
        )
        self.ordinal = ordinal
        self.key = key
