"""Shapes of the span tree."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

AttributeValue = str | int | float | bool
TraceKind = Literal[
    "task",
    "submission",
    "queue",
    "turn",
    "model_request",
    "phase",
    "tool",
    "item",
    "workspace",
    "setup",
    "verification",
    "hook",
    "wait",
    "span",
    "event",
]


@dataclass(frozen=True)
class TraceNode:
    """A span. Children are in order of their start."""

    name: str
    kind: TraceKind
    start_ms: int
    """Milliseconds since the epoch."""
    end_ms: int | None
    """None: it had not ended when the last record was written. `event`s end where they start."""
    attributes: Mapping[str, AttributeValue]
    children: tuple["TraceNode", ...]

    @property
    def duration_ms(self) -> int | None:
        """How long it took; None: not ended."""
        return None if self.end_ms is None else self.end_ms - self.start_ms


@dataclass(frozen=True)
class TraceTree:
    """What a thread did."""

    thread_id: str | None
    task_id: str | None
    trace_id: str | None
    """W3C trace id of the first submission; later turns have their own, as an attribute."""
    root: TraceNode | None
    """None: there are no records."""
