"""Errors of the model client.

agent.ports.ModelError
└── ClassifiedError    a failed request with its class; `request_retry` tells the request layer whether to send it again
"""

from enum import StrEnum

from patchyard.agent.ports import ModelError
from patchyard.protocol.errors import ErrorInfo


class SocketFault(StrEnum):
    """What a failure says about the thread's WebSocket."""

    UNSUPPORTED = "unsupported"
    """426: the server wants HTTP. Go over to SSE at once and without a word."""
    MISSING = "missing"
    """There is no WebSocket at this address. Go over to SSE and say so."""
    STALE = "stale"
    """The server dropped an idle socket or its memory of the thread: send everything again at once over a new one."""
    BROKEN = "broken"
    """It broke, or could not be opened: counts towards giving it up."""


class ClassifiedError(ModelError):
    """A model request failed; the message says which setting to look at."""

    def __init__(self, info: ErrorInfo, *, retry_after_s: float | None = None, request_retry: bool = False) -> None:
        super().__init__(info, retry_after_s=retry_after_s)
        self.request_retry = request_retry
        self.fault: SocketFault | None = None
        """None: not the socket's fault, or there was none."""

    def blame(self, fault: SocketFault) -> "ClassifiedError":
        """The same error, with what it says about the socket."""
        self.fault = fault
        return self
