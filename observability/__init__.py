"""Telemetry shared by all processes: spans, metrics, logs, and trace context across the queue."""

from .accepting import accepting
from .logs import bind, configure_logs
from .metrics import Metrics
from .names import Attr, Metric, reference
from .propagation import parse, render
from .setup import Observability, setup
from .thread import ThreadTelemetry
from .tracing import TurnSpan, TurnTelemetry

__all__ = [
    "Attr",
    "Metric",
    "Metrics",
    "Observability",
    "ThreadTelemetry",
    "TurnSpan",
    "TurnTelemetry",
    "accepting",
    "bind",
    "configure_logs",
    "parse",
    "reference",
    "render",
    "setup",
]
