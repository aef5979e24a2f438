"""Telemetry of one process. Exporters exist only when a collector is configured, and a collector that is away costs nothing."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from opentelemetry.metrics import MeterProvider, NoOpMeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace import Tracer

from patchyard.protocol.ops import TraceContext
from patchyard.settings import Settings

from .ids import DerivedIds
from .logs import OncePerMinute, configure_logs
from .metrics import Metrics
from .names import INSTRUMENTATION, SCHEMA_URL
from .tracing import TurnTelemetry

QUEUE_SPANS = 4096
"""Finished spans that wait for the collector; more are dropped."""
EXPORT_TIMEOUT_S = 3.0
EXPORT_EVERY_MS = 2000
METRICS_EVERY_MS = 15_000
_NOISY = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http._common",
    "opentelemetry.sdk._shared_internal",
    "opentelemetry.sdk.metrics._internal.export",
)


@dataclass
class Observability:
    """What `setup` made. One per process."""

    tracer: Tracer
    ids: DerivedIds
    metrics: Metrics
    _closers: list[Callable[[], object]] = field(default_factory=list)

    def turn(self, turn_id: str, *, submission: TraceContext | None, segment: int = 1) -> TurnTelemetry:
        """Telemetry of one segment of a turn; `segment` counts from 1."""
        return TurnTelemetry(self.tracer, self.ids, turn_id=turn_id, submission=submission, segment=segment)

    def shutdown(self, timeout_s: float = 1.0) -> None:
        """Send what waits, for at most `timeout_s`; a collector that is away does not hold the process up."""
        threads = [threading.Thread(target=closer, daemon=True) for closer in self._closers]
        self._closers = []
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout_s)


def setup(
    settings: Settings, service: str, *, version: str = "", redact: Callable[[str], str] = str, logs: bool = True
) -> Observability:
    """Logs, spans and metrics for this process. `redact` sees every log text."""
    if logs:
        configure_logs(settings.log_level, service, redact=redact)
    resource = Resource.create({"service.name": f"patchyard-{service}", "service.version": version}, SCHEMA_URL)
    ids = DerivedIds()
    provider = TracerProvider(
        sampler=ParentBased(ALWAYS_ON),
        resource=resource,
        id_generator=ids,
        shutdown_on_exit=False,
        span_limits=SpanLimits(max_span_attributes=64, max_events=32, max_links=64),
    )
    closers: list[Callable[[], object]] = []
    meters: MeterProvider = NoOpMeterProvider()
    if settings.otlp_endpoint:
        meters = _export(settings.otlp_endpoint.rstrip("/"), provider, resource, closers)
    tracer = provider.get_tracer(INSTRUMENTATION, version or None, SCHEMA_URL)
    return Observability(tracer, ids, Metrics(meters.get_meter(INSTRUMENTATION)), closers)


def _export(endpoint: str, provider: TracerProvider, resource: Resource, closers: list[Callable[[], object]]) -> MeterProvider:
    """Attach the exporters. Imported here: a process without a collector does not pay for them."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    for name in _NOISY:
        logging.getLogger(name).addFilter(OncePerMinute())
    spans = OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", timeout=EXPORT_TIMEOUT_S)
    provider.add_span_processor(
        BatchSpanProcessor(spans, max_queue_size=QUEUE_SPANS, schedule_delay_millis=EXPORT_EVERY_MS, max_export_batch_size=512)
    )
    points = OTLPMetricExporter(endpoint=f"{endpoint}/v1/metrics", timeout=EXPORT_TIMEOUT_S)
    reader = PeriodicExportingMetricReader(
        points, export_interval_millis=METRICS_EVERY_MS, export_timeout_millis=EXPORT_TIMEOUT_S * 1000
    )
    meters = SdkMeterProvider([reader], resource=resource, shutdown_on_exit=False)
    closers += [provider.shutdown, meters.shutdown]
    return meters
