"""Everything the SDK raises.

PatchyardError            code, message, remedy, request_id, retryable
+-- ConnectionFailed      no service answered
+-- StreamLost            an event stream broke and could not be taken up again
+-- BadAnswer             something answered, but not a Patchyard service
+-- RequestRefused        the service said no
    +-- Unauthorized      401
    +-- NotFound          404
    +-- Conflict          409: thread closed, …
    +-- InvalidRequest    400, 413, 422: `fields` names each bad field
    +-- QueueFull         429: `retry_after_s`
    +-- ServiceUnavailable  502, 503, 507
"""

from collections.abc import Mapping, Sequence
from typing import Any

from patchyard.protocol.service import Problem


class PatchyardError(Exception):
    """Base of all errors of the SDK."""

    code = "client_error"
    retryable = False
    request_id: str | None = None
    remedy: str | None = None
    """What to do next, when the message does not say it already."""

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if remedy is not None:
            self.remedy = remedy


class ConnectionFailed(PatchyardError):
    """No service answered."""

    code = "connection_failed"
    retryable = True


class StreamLost(ConnectionFailed):
    """An event stream broke and could not be taken up again in time."""

    code = "stream_lost"


class BadAnswer(PatchyardError):
    """Something answered that does not speak Patchyard's API."""

    code = "bad_answer"


class RequestRefused(PatchyardError):
    """The service refused the request."""

    def __init__(self, problem: Problem, *, retry_after_s: float | None = None) -> None:
        super().__init__(problem.detail or problem.title)
        self.problem = problem
        self.status = problem.status
        self.code = problem.code
        self.retryable = problem.retryable
        self.request_id = problem.request_id
        self.remedy = problem.details.get("remedy")
        self.retry_after_s = retry_after_s

    @property
    def fields(self) -> Sequence[Mapping[str, Any]]:
        """`{field, message}` of each bad field; empty unless the request was invalid."""
        return self.problem.errors


class Unauthorized(RequestRefused):
    """The token is missing or unknown."""


class NotFound(RequestRefused):
    """There is no such thing, or it belongs to another tenant."""


class Conflict(RequestRefused):
    """The thing is in a state that does not allow this."""


class InvalidRequest(RequestRefused):
    """The request itself is wrong."""


class QueueFull(RequestRefused):
    """Too much waits already; `retry_after_s` says when to try again."""


class ServiceUnavailable(RequestRefused):
    """A part behind the API does not answer."""


def refusal(problem: Problem, *, retry_after_s: float | None = None) -> RequestRefused:
    """The exception for a refusal, by its status."""
    match problem.status:
        case 401:
            kind: type[RequestRefused] = Unauthorized
        case 404:
            kind = NotFound
        case 409:
            kind = Conflict
        case 400 | 413 | 422:
            kind = InvalidRequest
        case 429:
            kind = QueueFull
        case 502 | 503 | 504 | 507:
            kind = ServiceUnavailable
        case _:
            kind = RequestRefused
    return kind(problem, retry_after_s=retry_after_s)
