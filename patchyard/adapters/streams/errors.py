"""Errors of event streams.

StreamsError
└── HistoryUnavailable   records that were trimmed from the stream can't be read from the rollout
"""

from patchyard.protocol.errors import ErrorCode, ErrorInfo


class StreamsError(Exception):
    """Events can't be delivered."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info


class HistoryUnavailable(StreamsError):
    """The object store can't give the older records of a thread now."""

    def __init__(self, thread_id: str) -> None:
        text = f"Older events of thread {thread_id} can't be read from the object store now; subscribe again in a moment."
        super().__init__(ErrorInfo.of(ErrorCode.STORE_UNAVAILABLE, text, thread_id=thread_id))
