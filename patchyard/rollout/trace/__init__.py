"""The span tree of a thread, from its records alone: what happened, when, and for how long."""

from .building import build_trace
from .model import AttributeValue, TraceKind, TraceNode, TraceTree

__all__ = ["AttributeValue", "TraceKind", "TraceNode", "TraceTree", "build_trace"]
