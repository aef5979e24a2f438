"""Every span, attribute and metric name, in one place. SPANS.md is written from it.

GenAI names follow open-telemetry/semantic-conventions-genai as of 2026-10. They are in development there, so they are
pinned here and nowhere else.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
INSTRUMENTATION: Final = "patchyard"


class Attr(StrEnum):
    """Attribute keys. Those under `patchyard.` are ours; the others are the conventions'."""

    OPERATION = "gen_ai.operation.name"
    AGENT_NAME = "gen_ai.agent.name"
    AGENT_VERSION = "gen_ai.agent.version"
    CONVERSATION_ID = "gen_ai.conversation.id"
    PROVIDER = "gen_ai.provider.name"
    REQUEST_MODEL = "gen_ai.request.model"
    REQUEST_STREAM = "gen_ai.request.stream"
    RESPONSE_ID = "gen_ai.response.id"
    TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
    INPUT_TOKENS = "gen_ai.usage.input_tokens"
    OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
    CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
    CACHE_WRITE_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
    REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
    TOOL_NAME = "gen_ai.tool.name"
    TOOL_CALL_ID = "gen_ai.tool.call.id"
    TOOL_TYPE = "gen_ai.tool.type"
    OPENAI_API = "openai.api.type"
    SERVER_ADDRESS = "server.address"
    SERVER_PORT = "server.port"
    ERROR_TYPE = "error.type"
    MESSAGING_SYSTEM = "messaging.system"
    MESSAGING_OPERATION = "messaging.operation.type"
    MESSAGING_DESTINATION = "messaging.destination.name"
    TENANT = "patchyard.tenant.id"
    TASK = "patchyard.task.id"
    TURN = "patchyard.turn.id"
    SEGMENT = "patchyard.turn.segment"
    TURN_STATUS = "patchyard.turn.status"
    PROMPT_VERSION = "patchyard.prompt.version"
    QUEUE_WAIT = "patchyard.queue.wait_s"
    TRANSPORT = "patchyard.transport"
    ATTEMPT = "patchyard.attempt"
    REQUEST_KIND = "patchyard.request.kind"
    LINK = "patchyard.link"
    IMAGE = "patchyard.image"
    CACHED = "patchyard.cached"
    EXIT_CODE = "patchyard.exit_code"
    ROUND = "patchyard.verify.round"
    PASSED = "patchyard.verify.passed"
    FILES = "patchyard.patch.files"
    BYTES = "patchyard.patch.bytes"
    CANCELLED = "patchyard.cancelled"


class Link(StrEnum):
    """Values of `patchyard.link`: why a segment points at another span."""

    SUBMISSION = "submission"
    PREVIOUS_SEGMENT = "previous_segment"
    STEER = "steer"


@dataclass(frozen=True)
class SpanSpec:
    """A kind of span."""

    name: str
    """`{…}` stands for a value."""
    kind: Literal["internal", "client", "server", "producer", "consumer"]
    emitted_by: str
    key: str
    """What its span id is derived from, together with the turn."""
    stands_for: str
    """Rollout line from which `patchyard trace` shows it."""
    attributes: tuple[Attr, ...]
    meaning: str


TURN: Final = "invoke_agent patchyard"
CHAT: Final = "chat"
TOOL: Final = "execute_tool"
QUEUE: Final = "process patchyard.turns"
SEND: Final = "send patchyard.turns"
WORKSPACE: Final = "patchyard.workspace"
SETUP: Final = "patchyard.setup"
SANDBOX: Final = "patchyard.sandbox.start"
DIFF: Final = "patchyard.diff"
VERIFY: Final = "patchyard.verify"
RESTORE: Final = "patchyard.restore"

SPANS: Final[tuple[SpanSpec, ...]] = (
    SpanSpec(
        "{method} {route}",
        "server",
        "api",
        "random",
        "none",
        (Attr.ERROR_TYPE,),
        "A request that submits: accepted or refused.",
    ),
    SpanSpec(
        SEND,
        "producer",
        "api",
        "random; its context is in the submission",
        "the submission's traceparent",
        (Attr.MESSAGING_SYSTEM, Attr.MESSAGING_OPERATION, Attr.MESSAGING_DESTINATION),
        "Catalog row, submit and doorbell.",
    ),
    SpanSpec(
        TURN,
        "internal",
        "workers",
        "segment/<n>",
        "event_msg turn_started, turn_recovered and the turn's end",
        (
            Attr.OPERATION,
            Attr.AGENT_NAME,
            Attr.AGENT_VERSION,
            Attr.CONVERSATION_ID,
            Attr.REQUEST_MODEL,
            Attr.TENANT,
            Attr.TASK,
            Attr.TURN,
            Attr.SEGMENT,
            Attr.TURN_STATUS,
        ),
        "One stretch of a turn in one worker; a turn that was parked or recovered has several.",
    ),
    SpanSpec(
        QUEUE,
        "consumer",
        "workers",
        "queue/<segment>",
        "event_msg turn_started",
        (Attr.MESSAGING_SYSTEM, Attr.MESSAGING_OPERATION, Attr.MESSAGING_DESTINATION, Attr.QUEUE_WAIT),
        "From acceptance by the API to the claim by a worker.",
    ),
    SpanSpec(RESTORE, "internal", "workers", "restore/<segment>", "span", (), "History read from the rollout."),
    SpanSpec(WORKSPACE, "internal", "workers", "workspace/<segment>", "span", (), "Mirror and checkout of the base."),
    SpanSpec(
        SETUP,
        "internal",
        "workers",
        "setup/<segment>",
        "event_msg setup_started, setup_completed",
        (Attr.CACHED, Attr.EXIT_CODE, Attr.IMAGE),
        "The set-up command, or the look-up of its image.",
    ),
    SpanSpec(SANDBOX, "internal", "workers", "sandbox/<segment>", "span", (Attr.IMAGE,), "Start of the turn's box."),
    SpanSpec(
        f"{CHAT} {{model}}",
        "client",
        "agent",
        "model request and attempt",
        "model_request",
        (
            Attr.OPERATION,
            Attr.PROVIDER,
            Attr.REQUEST_MODEL,
            Attr.REQUEST_STREAM,
            Attr.RESPONSE_ID,
            Attr.TIME_TO_FIRST_CHUNK,
            Attr.INPUT_TOKENS,
            Attr.OUTPUT_TOKENS,
            Attr.CACHE_READ_TOKENS,
            Attr.CACHE_WRITE_TOKENS,
            Attr.REASONING_TOKENS,
            Attr.OPENAI_API,
            Attr.SERVER_ADDRESS,
            Attr.SERVER_PORT,
            Attr.TRANSPORT,
            Attr.ATTEMPT,
            Attr.ERROR_TYPE,
        ),
        "One model request.",
    ),
    SpanSpec(
        f"{TOOL} {{name}}",
        "internal",
        "agent",
        "call id",
        "event_msg item_started, item_completed",
        (Attr.OPERATION, Attr.TOOL_NAME, Attr.TOOL_CALL_ID, Attr.TOOL_TYPE, Attr.ERROR_TYPE),
        "One tool call.",
    ),
    SpanSpec(DIFF, "internal", "workers", "diff/<round>", "span", (Attr.FILES, Attr.BYTES), "The patch, computed in the box."),
    SpanSpec(
        VERIFY,
        "internal",
        "workers",
        "verify/<round>",
        "event_msg verification_started, verification_completed",
        (Attr.ROUND, Attr.PASSED, Attr.EXIT_CODE),
        "Fresh box, base, patch, overlay, verify command.",
    ),
)


def item_backed(name: str) -> bool:
    """Whether the rollout has another line from which this span can be shown, so that no span record is needed."""
    return name in (TURN, QUEUE, SETUP, VERIFY, CHAT, TOOL) or name.startswith((f"{CHAT} ", f"{TOOL} "))


class Metric(StrEnum):
    """Metric names. Labels come from closed sets only: never an id, a repository, a command or a user."""

    TURNS = "patchyard.turns"
    QUEUE_WAIT = "patchyard.queue.wait"
    QUEUE_DEPTH = "patchyard.queue.depth"
    SANDBOX_START = "patchyard.sandbox.start.duration"
    VERIFICATIONS = "patchyard.verifications"
    SEGMENT_BYTES = "patchyard.rollout.segment.bytes"
    TOKENS = "gen_ai.client.token.usage"
    AGENT_DURATION = "gen_ai.invoke_agent.duration"


@dataclass(frozen=True)
class MetricSpec:
    """A metric: unit, instrument and the labels that it may carry."""

    name: Metric
    unit: str
    kind: Literal["counter", "histogram", "gauge"]
    labels: tuple[str, ...]
    meaning: str


METRICS: Final[tuple[MetricSpec, ...]] = (
    MetricSpec(Metric.TURNS, "{turn}", "counter", ("status",), "Turn segments that ended."),
    MetricSpec(Metric.QUEUE_WAIT, "s", "histogram", (), "From acceptance to claim."),
    MetricSpec(Metric.QUEUE_DEPTH, "{thread}", "gauge", (), "Threads that are ready and not claimed."),
    MetricSpec(Metric.SANDBOX_START, "s", "histogram", ("kind",), "Start of a box until its commands can run."),
    MetricSpec(Metric.VERIFICATIONS, "{run}", "counter", ("passed",), "Verification runs."),
    MetricSpec(Metric.SEGMENT_BYTES, "By", "counter", (), "Rollout bytes written to the object store."),
    MetricSpec(Metric.TOKENS, "{token}", "histogram", ("gen_ai.token.type",), "Tokens of a turn segment."),
    MetricSpec(Metric.AGENT_DURATION, "s", "histogram", ("status",), "Length of a turn segment."),
)


def reference() -> str:
    """The text of SPANS.md."""
    lines = [
        "# Spans and metrics",
        "",
        "Written from `observability/names.py`; do not edit. Span ids are derived from the turn and a key.",
        "",
    ]
    for span in SPANS:
        lines += [f"## `{span.name}`", "", f"{span.meaning} Kind: {span.kind}. Made by: {span.emitted_by}. Key: {span.key}."]
        lines += [f"In the rollout: `{span.stands_for}`.", ""]
        lines += [f"- `{attribute.value}`" for attribute in span.attributes]
        lines += [""] if span.attributes else []
    lines += ["# Metrics", "", "| name | kind | unit | labels | meaning |", "|---|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "none"
        lines.append(f"| `{metric.name.value}` | {metric.kind} | {metric.unit} | {labels} | {metric.meaning} |")
    return "\n".join(lines) + "\n"
