import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from observability import Metrics, Observability, ThreadTelemetry, TurnTelemetry
from observability.ids import DerivedIds, span_id_for
from observability.names import TURN
from patchyard.agent.ports import Telemetry
from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.ops import TraceContext

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SUBMISSION = TraceContext(traceparent=f"00-{TRACE_ID}-b7ad6b7169203331-01")


class Kept(SpanExporter):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.spans += spans
        return SpanExportResult.SUCCESS


class Turn:
    def __init__(self, *, submission: TraceContext | None = SUBMISSION, segment: int = 1) -> None:
        self.kept = Kept()
        self.ids = ids = DerivedIds()
        provider = TracerProvider(id_generator=ids, shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.kept))
        self.tracer = provider.get_tracer("t")
        self.telemetry = TurnTelemetry(self.tracer, ids, turn_id="turn-1", submission=submission, segment=segment)

    @contextmanager
    def turn(self, attributes: Mapping[str, str] = {}) -> Iterator[None]:
        self.telemetry.begin(attributes)
        yield
        self.telemetry.end()

    def tree(self) -> dict[str, str | None]:
        names = {span.context.span_id: span.name for span in self.kept.spans}
        return {span.name: names.get(span.parent.span_id) if span.parent else None for span in self.kept.spans}


def test_it_is_the_agents_port() -> None:
    port: Telemetry = Turn().telemetry
    assert port.context() is None


def test_one_trace_from_the_submission_to_each_request_and_call() -> None:
    turn = Turn()
    with turn.turn({"gen_ai.operation.name": "invoke_agent"}):
        turn.telemetry.queue_wait(1_000, 3_500)
        with turn.telemetry.span("chat gpt-5.5", key="m1") as span:
            span.set(attempt=1, missing=None)
            sent = turn.telemetry.context()
        with turn.telemetry.span("patchyard.verify", key="verify/1"):
            pass
    assert turn.tree() == {
        TURN: None,
        "process patchyard.turns": TURN,
        "chat gpt-5.5": TURN,
        "patchyard.verify": TURN,
    }
    assert {f"{span.context.trace_id:032x}" for span in turn.kept.spans} == {TRACE_ID}
    root = next(span for span in turn.kept.spans if span.name == TURN)
    assert root.parent is not None
    assert f"{root.parent.span_id:016x}" == "b7ad6b7169203331"
    chat = next(span for span in turn.kept.spans if span.name.startswith("chat"))
    assert sent == TraceContext(traceparent=f"00-{TRACE_ID}-{chat.context.span_id:016x}-01")
    assert dict(chat.attributes or {}) == {"attempt": 1}


def test_records_are_made_for_what_no_other_line_stands_for() -> None:
    turn = Turn()
    with turn.turn():
        assert turn.telemetry.queue_wait(1_000, 3_500) == 2.5
        with turn.telemetry.span("chat gpt-5.5", key="m1"), turn.telemetry.span("execute_tool exec_command", key="c1"):
            pass
        with turn.telemetry.span("patchyard.workspace", key="w"), turn.telemetry.span("patchyard.diff", key="d") as span:
            span.set(files=2)
    records = turn.telemetry.take_records()
    assert [(record.name, record.attributes) for record in records] == [
        ("patchyard.diff", {"files": 2}),
        ("patchyard.workspace", {}),
    ]
    assert records[0].parent_span_id == records[1].span_id
    assert turn.telemetry.take_records() == ()
    turn.telemetry.put_back(records)
    assert turn.telemetry.take_records() == records


def test_the_agents_own_turn_span_is_the_segments() -> None:
    turn = Turn()
    observability = Observability(turn.tracer, turn.ids, Metrics(NoOpMeterProvider().get_meter("t")))
    thread = ThreadTelemetry(observability, {"gen_ai.conversation.id": "th"})
    with thread.span("patchyard.restore", key="x") as nothing:
        nothing.set(a=1)
    assert thread.context() is None
    thread.begin_turn("turn-1", submission=SUBMISSION, segment=1, accepted_ms=None)
    thread.begin_turn("turn-1", submission=None, segment=5, accepted_ms=None)
    with thread.span(TURN, key="any", attributes={"patchyard.turn.segment": 0, "gen_ai.request.model": "m"}) as span:
        with thread.span("chat m", key="1"):
            pass
        thread.note_status("completed")
        thread.end_turn()
        span.set(late=1)
    assert turn.tree() == {"chat m": TURN, TURN: None}
    attributes = dict(turn.kept.spans[-1].attributes or {})
    assert attributes["patchyard.turn.segment"] == 1
    assert attributes["gen_ai.request.model"] == "m"
    assert attributes["patchyard.turn.status"] == "completed"
    assert "late" not in attributes


def test_the_worker_that_recovers_a_turn_gives_the_same_ids() -> None:
    ids = []
    for _ in range(2):
        turn = Turn()
        with turn.turn(), turn.telemetry.span("chat m", key="m1"):
            pass
        ids.append([span.context.span_id for span in turn.kept.spans])
    assert ids[0] == ids[1]


def test_later_segments_are_linked_in_the_same_trace() -> None:
    turn = Turn(segment=2)
    with turn.turn():
        pass
    (root,) = turn.kept.spans
    assert root.parent is None
    assert f"{root.context.trace_id:032x}" == TRACE_ID
    assert [(f"{link.context.span_id:016x}", (link.attributes or {})["patchyard.link"]) for link in root.links] == [
        ("b7ad6b7169203331", "submission"),
        (f"{span_id_for('turn-1', 'segment/1'):016x}", "previous_segment"),
    ]


@pytest.mark.parametrize(
    "broken", [None, TraceContext(traceparent="nonsense"), TraceContext(traceparent=f"00-{'0' * 32}-{'0' * 16}-01")]
)
def test_without_a_proper_context_the_trace_comes_from_the_turn(broken: TraceContext | None) -> None:
    first, second = Turn(submission=broken), Turn(submission=broken)
    assert first.telemetry.trace_id == second.telemetry.trace_id != TRACE_ID


def test_failures_are_marked_and_cancellations_are_not() -> None:
    class OwnError(Exception):
        info = ErrorInfo.of(ErrorCode.DISK_FULL, "full")

    turn = Turn()
    with turn.turn():
        for key, error in (("a", OwnError()), ("b", KeyError("x")), ("c", asyncio.CancelledError())):
            with pytest.raises(type(error)), turn.telemetry.span(f"patchyard.{key}", key=key):
                raise error
    told = [(dict(span.attributes or {}), span.status.is_ok) for span in turn.kept.spans[:3]]
    assert told == [
        ({"error.type": "disk_full"}, False),
        ({"error.type": "KeyError"}, False),
        ({"patchyard.cancelled": True}, True),
    ]


def test_spans_of_concurrent_calls_do_not_nest() -> None:
    turn = Turn()

    async def call(key: str, mine: asyncio.Event, other: asyncio.Event) -> None:
        with turn.telemetry.span(f"execute_tool {key}", key=key):
            mine.set()
            await other.wait()

    async def run() -> None:
        a, b = asyncio.Event(), asyncio.Event()
        with turn.turn():
            await asyncio.gather(call("a", a, b), call("b", b, a))

    asyncio.run(run())
    assert turn.tree() == {TURN: None, "execute_tool a": TURN, "execute_tool b": TURN}
