"""What can be wrong with a request."""

from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum

KEPT = 1000
"""Violations that are kept with their text; all are counted."""


class ViolationKind(StrEnum):
    """Closed set: what a client did wrong."""

    MALFORMED_REQUEST = "malformed_request"
    ORPHAN_OUTPUT = "orphan_output"
    UNANSWERED_CALL = "unanswered_call"
    DUPLICATE_CALL = "duplicate_call"
    DUPLICATE_OUTPUT = "duplicate_output"
    OUTPUT_KIND = "output_kind"
    OUTPUT_ORDER = "output_order"
    LOST_CALL = "lost_call"
    REWRITTEN_HISTORY = "rewritten_history"
    EXPECTATION = "expectation"
    UNEXPECTED_REQUEST = "unexpected_request"


@dataclass(frozen=True)
class Violation:
    """One finding."""

    kind: ViolationKind
    message: str
    thread: str
    request: int
    """Number of the request, from 0."""

    def as_dict(self) -> dict[str, str | int]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"violation {self.kind}: request {self.request}, thread {self.thread}: {self.message}"


class Violations:
    """The newest violations and the number of all."""

    def __init__(self, on_violation: Callable[[Violation], None] | None = None) -> None:
        self._kept: deque[Violation] = deque(maxlen=KEPT)
        self._on_violation = on_violation
        self.count = 0

    def add(self, violation: Violation) -> None:
        """Keep it and tell whoever listens."""
        self.count += 1
        self._kept.append(violation)
        if self._on_violation is not None:
            self._on_violation(violation)

    def all(self) -> tuple[Violation, ...]:
        """Those that are kept, oldest first."""
        return tuple(self._kept)

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()
        self.count = 0
