"""W3C trace context in submissions: read it, write it, and decide between parent and link."""

import re
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.trace import Link, SpanContext, TraceFlags, TraceState

from patchyard.protocol.ops import TraceContext

from .ids import span_id_for, trace_id_for
from .names import Attr
from .names import Link as LinkReason

_TRACEPARENT = re.compile(r"^[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$")


def parse(context: TraceContext | None) -> SpanContext | None:
    """The span that a submission came from; None when it brought none, or a broken one."""
    match = _TRACEPARENT.match(context.traceparent) if context is not None else None
    if context is None or match is None:
        return None
    state = TraceState.from_header([context.tracestate]) if context.tracestate else TraceState()
    span = SpanContext(
        int(match[1], 16), int(match[2], 16), is_remote=True, trace_flags=TraceFlags(int(match[3], 16)), trace_state=state
    )
    return span if span.is_valid else None


def render(span: SpanContext) -> TraceContext | None:
    """The context to send on; None for a span without ids."""
    if not span.is_valid:
        return None
    parent = f"00-{trace.format_trace_id(span.trace_id)}-{trace.format_span_id(span.span_id)}-{span.trace_flags:02x}"
    return TraceContext(traceparent=parent, tracestate=span.trace_state.to_header() or None)


@dataclass(frozen=True)
class SegmentOrigin:
    """Where a turn's segment hangs in its trace."""

    trace_id: int
    parent: SpanContext | None
    """None: the segment is a root of its own inside the turn's trace."""
    links: tuple[Link, ...]


def segment_origin(turn_id: str, submission: TraceContext | None, segment: int) -> SegmentOrigin:
    """The first segment is a child of the submission; later ones are linked to it and to the segment before.

    All share the turn's trace id. `segment` counts from 1.
    """
    creator = parse(submission)
    trace_id = creator.trace_id if creator is not None else trace_id_for(turn_id)
    links: list[Link] = []
    if creator is not None:
        links.append(Link(creator, {Attr.LINK.value: LinkReason.SUBMISSION.value}))
    if segment <= 1:
        return SegmentOrigin(trace_id, creator, tuple(links))
    before = SpanContext(
        trace_id, span_id_for(turn_id, f"segment/{segment - 1}"), is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED)
    )
    links.append(Link(before, {Attr.LINK.value: LinkReason.PREVIOUS_SEGMENT.value}))
    return SegmentOrigin(trace_id, None, tuple(links))
