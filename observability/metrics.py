"""Metrics. Without a collector every call is a no-op."""

from collections.abc import Mapping

from opentelemetry.metrics import Meter

from .names import METRICS, Metric


class Metrics:
    """All instruments, by their frozen names. Labels outside a metric's own list are dropped: they would be unbounded."""

    def __init__(self, meter: Meter) -> None:
        self._labels = {spec.name: frozenset(spec.labels) for spec in METRICS}
        self._counters = {
            spec.name: meter.create_counter(spec.name, spec.unit, spec.meaning) for spec in METRICS if spec.kind == "counter"
        }
        self._histograms = {
            spec.name: meter.create_histogram(spec.name, spec.unit, spec.meaning)
            for spec in METRICS
            if spec.kind == "histogram"
        }
        self._gauges = {
            spec.name: meter.create_gauge(spec.name, spec.unit, spec.meaning) for spec in METRICS if spec.kind == "gauge"
        }

    def add(self, metric: Metric, value: float = 1, labels: Mapping[str, str] | None = None) -> None:
        """Count, or record one value, by the metric's kind."""
        kept = {key: text for key, text in (labels or {}).items() if key in self._labels[metric]}
        if metric in self._counters:
            self._counters[metric].add(value, kept)
        elif metric in self._histograms:
            self._histograms[metric].record(value, kept)
        else:
            self._gauges[metric].set(value, kept)
