"""Errors of the model client.

agent.ports.ModelError
└── ClassifiedError    a failed request with its class; `request_retry` tells the request layer whether to send it again
"""

from patchyard.agent.ports import ModelError
from patchyard.protocol.errors import ErrorInfo


class ClassifiedError(ModelError):
    """A model request failed; the message says which setting to look at."""

    def __init__(self, info: ErrorInfo, *, retry_after_s: float | None = None, request_retry: bool = False) -> None:
        super().__init__(info, retry_after_s=retry_after_s)
        self.request_retry = request_retry
