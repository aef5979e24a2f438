import io
import json
import logging
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import observability
from observability import bind, configure_logs
from observability.metrics import Metrics
from observability.names import METRICS, SPANS, Metric
from patchyard.settings import Settings

ROOT = Path(observability.__file__).parent


@pytest.fixture
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest], threading.Event]]:
    got: list[ExportTraceServiceRequest] = []
    arrived = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == "/v1/traces":
                got.append(ExportTraceServiceRequest.FromString(body))
                arrived.set()
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", got, arrived
    server.shutdown()
    thread.join()
    server.server_close()


def test_spans_reach_a_collector(
    collector: tuple[str, list[ExportTraceServiceRequest], threading.Event], tmp_path: Path
) -> None:
    url, got, arrived = collector
    telemetry = observability.setup(Settings(home=tmp_path, otlp_endpoint=url), "worker", version="1.2.3", logs=False)
    turn = telemetry.turn("t1", submission=None)
    turn.begin({})
    turn.end()
    telemetry.shutdown(timeout_s=10)
    assert arrived.is_set()
    resource = {item.key: item.value.string_value for item in got[0].resource_spans[0].resource.attributes}
    assert (resource["service.name"], resource["service.version"]) == ("patchyard-worker", "1.2.3")


def test_a_collector_that_is_away_costs_nothing(tmp_path: Path) -> None:
    said: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = said.append  # type: ignore[method-assign]
    logging.getLogger("opentelemetry").addHandler(handler)
    try:
        telemetry = observability.setup(Settings(home=tmp_path, otlp_endpoint="http://127.0.0.1:9"), "worker", logs=False)
        began = time.thread_time()
        turn = telemetry.turn("t1", submission=None)
        for number in range(2000):
            with turn.span("execute_tool x", key=str(number)):
                pass
        telemetry.metrics.add(Metric.TURNS, labels={"status": "completed"})
        assert time.thread_time() - began < 5  # about 0.1 s
        telemetry.shutdown(timeout_s=0.5)
    finally:
        logging.getLogger("opentelemetry").removeHandler(handler)
    assert len([record for record in said if record.levelno >= logging.ERROR]) <= 3


def test_logs_are_json_with_bound_ids_and_without_secrets() -> None:
    out = io.StringIO()
    root = logging.getLogger()
    level = root.level
    handler = configure_logs("INFO", "worker", redact=lambda text: text.replace("hunter22", "[redacted]"), stream=out)
    try:
        with bind(thread_id="th", turn_id="tu"):
            with bind(turn_id="tu2", task_id=None):
                logging.getLogger("x").info("password %s", "hunter22")
            try:
                raise RuntimeError("hunter22")
            except RuntimeError:
                logging.getLogger("x").exception("failed")
        logging.getLogger("x").warning("after")
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    first, second, third = map(json.loads, out.getvalue().splitlines())
    assert (first["message"], first["thread_id"], first["turn_id"]) == ("password [redacted]", "th", "tu2")
    assert "task_id" not in first
    assert second["turn_id"] == "tu"
    assert "hunter22" not in out.getvalue()
    assert "RuntimeError" in second["exception"]
    assert "thread_id" not in third
    with pytest.raises(ValueError, match="color"):
        bind(color="red").__enter__()


def test_the_reference_is_up_to_date() -> None:
    assert (ROOT / "SPANS.md").read_text() == observability.reference()


def test_names_are_unique_and_labels_are_closed() -> None:
    assert len({span.name for span in SPANS}) == len(SPANS)
    assert [metric.name for metric in METRICS] == list(Metric)
    labels = {label for metric in METRICS for label in metric.labels}
    assert labels == {"status", "kind", "passed", "gen_ai.token.type"}


def test_unbounded_labels_are_dropped() -> None:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    metrics = Metrics(MeterProvider([reader], shutdown_on_exit=False).get_meter("t"))
    metrics.add(Metric.TURNS, labels={"status": "completed", "thread_id": "x"})
    metrics.add(Metric.QUEUE_WAIT, 1.5)
    metrics.add(Metric.QUEUE_DEPTH, 3)
    data = json.loads(reader.get_metrics_data().to_json())  # type: ignore[union-attr]
    points = {m["name"]: m["data"]["data_points"][0] for m in data["resource_metrics"][0]["scope_metrics"][0]["metrics"]}
    assert points["patchyard.turns"]["attributes"] == {"status": "completed"}
    assert points["patchyard.queue.wait"]["sum"] == 1.5
    assert points["patchyard.queue.depth"]["value"] == 3
