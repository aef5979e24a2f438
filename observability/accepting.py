"""The spans of a request that submits something: the API's own, and the sending whose context goes into the submission."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from patchyard.protocol.ops import TraceContext

from .names import SEND, Attr
from .propagation import parse, render
from .setup import Observability


@contextmanager
def accepting(observability: Observability, route: str, client: TraceContext | None) -> Iterator[TraceContext]:
    """A server span named by the route, child of the client's span if it sent one; inside it, the sending.

    Yields the context for the submission: the worker's spans hang below it, whatever process they are made in.
    """
    tracer = observability.tracer
    parent = parse(client)
    above = trace.set_span_in_context(trace.NonRecordingSpan(parent)) if parent is not None else None
    with tracer.start_as_current_span(route, context=above, kind=SpanKind.SERVER, record_exception=False) as server:
        try:
            sending = {Attr.MESSAGING_SYSTEM.value: "redis", Attr.MESSAGING_OPERATION.value: "send"}
            sending[Attr.MESSAGING_DESTINATION.value] = "patchyard.turns"
            with tracer.start_as_current_span(SEND, kind=SpanKind.PRODUCER, attributes=sending, record_exception=False) as span:
                context = render(span.get_span_context())
                if context is None:
                    raise ValueError("a span of the SDK has no ids")
                yield context
        except Exception as error:
            code = getattr(getattr(error, "info", None), "code", None)
            server.set_attribute(Attr.ERROR_TYPE.value, str(code.value) if code is not None else type(error).__name__)
            server.set_status(Status(StatusCode.ERROR))
            raise
