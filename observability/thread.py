"""Telemetry of one claimed thread: the agent's port, which follows the thread from turn to turn."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from patchyard.agent.ports import Span
from patchyard.protocol.ops import TraceContext
from patchyard.protocol.rollout_lines import SpanRecord

from .names import TURN, Attr, Metric
from .setup import Observability
from .tracing import AttributeValue, TurnTelemetry


class _NoSpan:
    def set(self, **attributes: AttributeValue | None) -> None:
        """Outside of a turn there is nothing to note it on."""


class ThreadTelemetry:
    """Implements agent.ports.Telemetry. Between turns spans go nowhere."""

    def __init__(self, observability: Observability, attributes: Mapping[str, AttributeValue]) -> None:
        self._observability = observability
        self._attributes = {
            Attr.OPERATION.value: "invoke_agent",
            Attr.AGENT_NAME.value: "patchyard",
            **{str(key): value for key, value in attributes.items()},
        }
        self._turn: TurnTelemetry | None = None
        self.turn_id: str | None = None

    def begin_turn(self, turn_id: str, *, submission: TraceContext | None, segment: int, accepted_ms: int | None) -> None:
        """A turn's segment begins; `accepted_ms` is when its wait in the queue began. The same turn again changes nothing."""
        if self.turn_id == turn_id:
            return
        self.end_turn()
        self.turn_id = turn_id
        self._turn = self._observability.turn(turn_id, submission=submission, segment=segment)
        self._turn.begin({**self._attributes, Attr.TURN.value: turn_id, Attr.SEGMENT.value: segment})
        if accepted_ms is not None:
            wait_s = self._turn.queue_wait(accepted_ms)
            self._observability.metrics.add(Metric.QUEUE_WAIT, wait_s)

    def end_turn(self) -> None:
        """The segment is over."""
        if self._turn is not None:
            self._turn.end()
        self._turn = None
        self.turn_id = None

    @property
    def trace_id(self) -> str | None:
        """The running turn's trace id."""
        return self._turn.trace_id if self._turn is not None else None

    def note_status(self, status: str) -> None:
        """How the segment is about to end."""
        if self._turn is not None:
            self._turn.put({Attr.TURN_STATUS: status})

    def take_records(self) -> tuple[SpanRecord, ...]:
        """Records of spans that ended since the last call."""
        return self._turn.take_records() if self._turn is not None else ()

    def put_back(self, records: tuple[SpanRecord, ...]) -> None:
        """Records that were not committed after all."""
        if self._turn is not None:
            self._turn.put_back(records)

    @contextmanager
    def span(self, name: str, *, key: str, attributes: Mapping[str, AttributeValue] | None = None) -> Iterator[Span]:
        """See agent.ports.Telemetry."""
        if self._turn is None:
            yield _NoSpan()
            return
        if name == TURN:
            # The segment's span is open since the claim; the agent adds what it knows, our own number of the segment stays.
            self._turn.put({k: v for k, v in (attributes or {}).items() if k != Attr.SEGMENT})
            yield self._turn
            return
        with self._turn.span(name, key=key, attributes=attributes) as span:
            yield span

    def context(self) -> TraceContext | None:
        """See agent.ports.Telemetry."""
        return self._turn.context() if self._turn is not None else None
