"""W3C trace context of a request: the client's trace id is kept, else a new trace begins. Nothing else makes trace ids."""

import re
import secrets
from collections.abc import Mapping

from patchyard.protocol.ops import TraceContext

_TRACEPARENT = re.compile(r"^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$")
_MAX_TRACESTATE = 512
"""Characters; the least that W3C Trace Context asks every hop to pass on."""


def client_trace(headers: Mapping[str, str]) -> TraceContext | None:
    """The client's context. A malformed `traceparent` counts as none, as W3C Trace Context says."""
    match = _TRACEPARENT.match(headers.get("traceparent", "").strip())
    if match is None:
        return None
    version, trace_id, parent_id, _flags = match.groups()
    if version == "ff" or set(trace_id) == {"0"} or set(parent_id) == {"0"}:
        return None
    state = headers.get("tracestate")
    return TraceContext(
        traceparent=match.group(0) if version == "00" else f"00-{trace_id}-{parent_id}-01",
        tracestate=state if state and len(state) <= _MAX_TRACESTATE else None,
    )


def new_trace(trace_id: str | None = None) -> TraceContext:
    """A sampled context with a new span id; a new trace id too unless one is given (32 hex digits)."""
    return TraceContext(traceparent=f"00-{trace_id or secrets.token_hex(16)}-{secrets.token_hex(8)}-01")


def trace_id_of(trace: TraceContext) -> str:
    """The trace id, 32 hex digits."""
    return trace.traceparent.split("-")[1]
