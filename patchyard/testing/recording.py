"""Doubles that keep what they were told: spans, and the gate at a turn's end."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from patchyard.agent.ports import TurnOutcome
from patchyard.protocol.events import DurableMsg
from patchyard.protocol.ops import TraceContext

from .clock import FakeClock

AttributeValue = str | int | float | bool


@dataclass
class RecordedSpan:
    """A span and what it holds."""

    name: str
    key: str
    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    ended: bool = False

    def set(self, **attributes: AttributeValue | None) -> None:
        """See Span."""
        self.attributes |= {key: value for key, value in attributes.items() if value is not None}


class RecordingTelemetry:
    """Telemetry double."""

    def __init__(self) -> None:
        self.spans: list[RecordedSpan] = []

    @contextmanager
    def span(self, name: str, *, key: str, attributes: Mapping[str, AttributeValue] | None = None) -> Iterator[RecordedSpan]:
        """See Telemetry."""
        span = RecordedSpan(name, key, dict(attributes or {}))
        self.spans.append(span)
        try:
            yield span
        finally:
            span.ended = True

    def context(self) -> TraceContext | None:
        """See Telemetry."""
        return None


class ScriptedGate:
    """TurnGate double: gives `feedback` in order, then lets turns complete."""

    def __init__(
        self, clock: FakeClock, *, feedback: Sequence[str] = (), events: Sequence[DurableMsg] = (), at_end_s: float = 0
    ) -> None:
        self.asked: list[TurnOutcome] = []
        self.ended: list[TurnOutcome] = []
        self._clock = clock
        self._feedback = list(feedback)
        self._events = tuple(events)
        self._at_end_s = at_end_s

    async def before_complete(self, outcome: TurnOutcome) -> str | None:
        """See TurnGate."""
        self.asked.append(outcome)
        return self._feedback.pop(0) if self._feedback else None

    async def at_end(self, outcome: TurnOutcome) -> Sequence[DurableMsg]:
        """See TurnGate."""
        self.ended.append(outcome)
        if self._at_end_s:
            await self._clock.sleep(self._at_end_s)
        return self._events

    def assert_done(self) -> None:
        """All feedback was given."""
        if self._feedback:
            raise AssertionError(f"feedback never asked for: {self._feedback}")
