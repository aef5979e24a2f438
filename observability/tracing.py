"""The spans of one turn: the agent's telemetry port, and records of those spans for the rollout."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, Tracer

from patchyard.protocol.ops import TraceContext
from patchyard.protocol.rollout_lines import SpanRecord

from .ids import DerivedIds, NextIds, span_id_for
from .names import CHAT, QUEUE, TURN, Attr, item_backed
from .propagation import SegmentOrigin, render, segment_origin

AttributeValue = str | int | float | bool

_MAX_VALUE = 1000
"""Characters of an attribute's text; spans are no place for content."""


class TurnSpan:
    """An open span."""

    def __init__(self, span: OtelSpan, span_id: int, parent_id: int | None, name: str) -> None:
        self.otel = span
        self.span_id = span_id
        self.parent_id = parent_id
        self.name = name
        self.started_ms = _now_ms()
        self.attributes: dict[str, AttributeValue] = {}

    @property
    def context(self) -> SpanContext:
        """Its ids."""
        return self.otel.get_span_context()

    def set(self, **attributes: AttributeValue | None) -> None:
        """Add attributes; None values are left out."""
        self.put({key: value for key, value in attributes.items() if value is not None})

    def put(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Add attributes under names that are no Python identifiers."""
        recording = self.otel.is_recording()
        for key, value in attributes.items():
            short = value[:_MAX_VALUE] if isinstance(value, str) else value
            self.attributes[str(key)] = short
            if recording:
                self.otel.set_attribute(str(key), short)

    def fail(self, error: BaseException) -> None:
        """Mark it as failed. A cancellation is no failure."""
        if isinstance(error, asyncio.CancelledError):
            self.put({Attr.CANCELLED: True})
            return
        code = getattr(getattr(error, "info", None), "code", None)
        self.put({Attr.ERROR_TYPE: str(code.value) if code is not None else type(error).__name__})
        self.otel.set_status(Status(StatusCode.ERROR))


@dataclass(frozen=True)
class _Current:
    owner: "TurnTelemetry"
    span: TurnSpan


_current: ContextVar[_Current | None] = ContextVar("patchyard_span", default=None)


class TurnTelemetry:
    """Spans of one segment of a turn. Never blocks; what goes wrong in telemetry stays there.

    Records of finished spans that no other rollout line stands for are collected until `take_records`.
    """

    def __init__(
        self, tracer: Tracer, ids: DerivedIds, *, turn_id: str, submission: TraceContext | None = None, segment: int = 1
    ) -> None:
        self._tracer = tracer
        self._ids = ids
        self._turn_id = turn_id
        self._segment = segment
        self._origin: SegmentOrigin = segment_origin(turn_id, submission, segment)
        self._root: TurnSpan | None = None
        self._records: list[SpanRecord] = []

    @property
    def trace_id(self) -> str:
        """The turn's trace id, 32 hex digits."""
        return trace.format_trace_id(self._origin.trace_id)

    def begin(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Open the segment's own span; all others hang below it."""
        key = f"segment/{self._segment}"
        self._root = self._start(TURN, key, SpanKind.INTERNAL, attributes, parent=None)

    def set(self, **attributes: AttributeValue | None) -> None:
        """Add attributes to the segment's span; None values are left out."""
        self.put({key: value for key, value in attributes.items() if value is not None})

    def put(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Add attributes to the segment's span."""
        if self._root is not None:
            self._root.put(attributes)

    def end(self) -> None:
        """Close the segment's span."""
        if self._root is not None:
            self._root.otel.end()
            self._root = None

    @contextmanager
    def span(self, name: str, *, key: str, attributes: Mapping[str, AttributeValue] | None = None) -> Iterator[TurnSpan]:
        """See agent.ports.Telemetry."""
        kind = SpanKind.CLIENT if name == CHAT or name.startswith(f"{CHAT} ") else SpanKind.INTERNAL
        with self._open(name, key, kind, attributes or {}) as span:
            yield span

    def queue_wait(self, accepted_ms: int, claimed_ms: int | None = None) -> float:
        """A span that was over before anybody could open it: the wait in the queue, until now. Returns its seconds."""
        claimed_ms = max(accepted_ms, _now_ms() if claimed_ms is None else claimed_ms)
        span_id = span_id_for(self._turn_id, f"queue/{self._segment}")
        wait_s = (claimed_ms - accepted_ms) / 1000
        attributes: dict[str, AttributeValue] = {
            Attr.MESSAGING_SYSTEM.value: "redis",
            Attr.MESSAGING_OPERATION.value: "process",
            Attr.MESSAGING_DESTINATION.value: "patchyard.turns",
            Attr.QUEUE_WAIT.value: wait_s,
        }
        parent = self._root
        with self._ids.use(NextIds(span_id, self._origin.trace_id)):
            span = self._tracer.start_span(
                QUEUE,
                context=self._parent_context(parent),
                kind=SpanKind.CONSUMER,
                attributes=attributes,
                start_time=accepted_ms * 10**6,
            )
        span.end(claimed_ms * 10**6)
        return wait_s

    def context(self) -> TraceContext | None:
        """The current span as W3C context."""
        span = self._innermost()
        return render(span.context) if span is not None else None

    def take_records(self) -> tuple[SpanRecord, ...]:
        """Records of spans that ended since the last call."""
        records = tuple(self._records)
        self._records.clear()
        return records

    def put_back(self, records: tuple[SpanRecord, ...]) -> None:
        """Records that could not be written after all."""
        self._records[:0] = records

    @contextmanager
    def _open(self, name: str, key: str, kind: SpanKind, attributes: Mapping[str, AttributeValue]) -> Iterator[TurnSpan]:
        span = self._start(name, key, kind, attributes, parent=self._innermost())
        mine = _current.set(_Current(self, span))
        shared = otel_context.attach(trace.set_span_in_context(span.otel))
        try:
            yield span
        except BaseException as error:
            span.fail(error)
            raise
        finally:
            otel_context.detach(shared)
            _current.reset(mine)
            span.otel.end()
            if not item_backed(name):
                self._records.append(self._record_of(span, _now_ms()))

    def _start(
        self, name: str, key: str, kind: SpanKind, attributes: Mapping[str, AttributeValue], *, parent: TurnSpan | None
    ) -> TurnSpan:
        span_id = span_id_for(self._turn_id, key)
        with self._ids.use(NextIds(span_id, self._origin.trace_id)):
            otel = self._tracer.start_span(
                name,
                context=self._parent_context(parent),
                kind=kind,
                attributes={str(name): value for name, value in attributes.items()},
                links=self._origin.links if parent is None else (),
                record_exception=False,
                set_status_on_exception=False,
            )
        above = parent.span_id if parent else self._origin.parent.span_id if self._origin.parent else None
        span = TurnSpan(otel, span_id, above, name)
        span.put(attributes)
        return span

    def _innermost(self) -> TurnSpan | None:
        current = _current.get()
        return current.span if current is not None and current.owner is self else self._root

    def _parent_context(self, parent: TurnSpan | None) -> otel_context.Context:
        if parent is not None:
            return trace.set_span_in_context(trace.NonRecordingSpan(self._sampled(parent)), otel_context.Context())
        if self._origin.parent is not None:
            return trace.set_span_in_context(trace.NonRecordingSpan(self._origin.parent), otel_context.Context())
        return otel_context.Context()

    def _sampled(self, parent: TurnSpan) -> SpanContext:
        known = parent.context
        if known.is_valid:
            return known
        return SpanContext(self._origin.trace_id, parent.span_id, is_remote=False, trace_flags=TraceFlags(0))

    def _record_of(self, span: TurnSpan, ended_ms: int) -> SpanRecord:
        return SpanRecord(
            span_id=trace.format_span_id(span.span_id),
            parent_span_id=trace.format_span_id(span.parent_id) if span.parent_id is not None else None,
            name=span.name,
            started_at=span.started_ms,
            ended_at=max(span.started_ms, ended_ms),
            attributes=dict(span.attributes),
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
