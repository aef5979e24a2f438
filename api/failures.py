"""What the parts behind the API raise, as one kind of failure. Each part's error tree has one root with an ErrorInfo."""

from dataclasses import dataclass

from patchyard.adapters.catalog import CatalogError
from patchyard.adapters.queue import QueueError, QueueFull
from patchyard.adapters.store import StoreError
from patchyard.protocol.errors import ErrorInfo

RETRY_AFTER_S = 1.0
"""What clients are told when a part is away: it mostly is for the length of a restart."""


@dataclass(frozen=True)
class Failure:
    """A failure with a known cause."""

    info: ErrorInfo
    retry_after_s: float | None


KNOWN = (QueueError, CatalogError, StoreError)
"""Roots of the error trees of the parts behind the API."""


def known_failure(error: Exception) -> Failure | None:
    """The failure behind an exception; None: a bug."""
    match error:
        case QueueFull():
            return Failure(error.info, error.retry_after_s)
        case QueueError() | CatalogError() | StoreError():
            return Failure(error.info, RETRY_AFTER_S if error.info.retryable else None)
        case _:
            return None
