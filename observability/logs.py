"""JSON logs, one object a line, with the ids of what is being worked on taken from the context by one filter."""

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

from opentelemetry import trace

FIELDS = ("tenant_id", "task_id", "thread_id", "turn_id")
"""Ids that `bind` takes."""

_bound: ContextVar[dict[str, str] | None] = ContextVar("patchyard_log_fields", default=None)


@contextmanager
def bind(**fields: str | None) -> Iterator[None]:
    """Put ids on every log line inside, also of tasks started there; cleared afterwards. ValueError for names not in FIELDS."""
    unknown = set(fields) - set(FIELDS)
    if unknown:
        raise ValueError(f"not a log field: {', '.join(sorted(unknown))}")
    token = _bound.set({**(_bound.get() or {}), **{name: value for name, value in fields.items() if value is not None}})
    try:
        yield
    finally:
        _bound.reset(token)


class ContextFilter(logging.Filter):
    """Lays the bound ids and the trace id into each record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Always lets the record pass."""
        ids = dict(_bound.get() or {})
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            ids["trace_id"] = trace.format_trace_id(span.trace_id)
            ids["span_id"] = trace.format_span_id(span.span_id)
        record.__dict__["patchyard"] = ids
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object a line. `redact` sees every text before it is written."""

    def __init__(self, service: str, redact: Callable[[str], str]) -> None:
        super().__init__()
        self._service = service
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "service": self._service,
            "logger": record.name,
            "message": self._redact(record.getMessage()),
        }
        entry.update(getattr(record, "patchyard", {}))
        if record.exc_info:
            entry["exception"] = self._redact(self.formatException(record.exc_info))
        return json.dumps(entry, ensure_ascii=False)


class OncePerMinute(logging.Filter):
    """Lets one line a minute of a logger pass: an exporter without a collector says the same every few seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a minute has passed since the last line."""
        if record.created < self._next:
            return False
        self._next = record.created + 60
        return True


def configure_logs(level: str, service: str, *, redact: Callable[[str], str], stream: TextIO | None = None) -> logging.Handler:
    """Write all logs of this process as JSON to `stream` (stderr). Replaces the handler of an earlier call."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.set_name("patchyard")
    handler.addFilter(ContextFilter())
    handler.setFormatter(JsonFormatter(service, redact))
    root = logging.getLogger()
    for old in [old for old in root.handlers if old.get_name() == "patchyard"]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for quiet in ("httpx", "httpcore", "urllib3", "botocore", "kombu", "celery.worker.strategy", "celery.app.trace"):
        logging.getLogger(quiet).setLevel(logging.WARNING)
    return handler
