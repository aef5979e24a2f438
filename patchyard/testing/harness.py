"""A session over doubles, in one object; and the doubles that only keep what they were told: spans, and the gate."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from patchyard.agent.config import Ports, SessionConfig
from patchyard.agent.ports import TurnOutcome
from patchyard.agent.recall import ApprovalMemory
from patchyard.agent.session import Session, SessionOutcome
from patchyard.protocol.events import DurableMsg
from patchyard.protocol.ops import Op, Submission, TraceContext
from patchyard.protocol.tasks import TaskSpec
from patchyard.rollout import RestoredThread

from .agents import ScriptedAgents
from .builders import spec as default_spec
from .builders import turn_input
from .clock import FakeClock
from .memory_channel import MemoryChannel
from .scripted_model import ScriptedModel, ScriptStep
from .scripted_sandbox import Command, ScriptedSandbox, ScriptedSource

AttributeValue = str | int | float | bool

HANGS_S = 60.0
"""Real seconds after which a test has failed that waits: a slow machine, or a real server behind a double, needs some."""


@dataclass
class RecordedSpan:
    """A span and what it holds."""

    name: str
    key: str
    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    ended: bool = False

    def set(self, **attributes: AttributeValue | None) -> None:
        """See Span."""
        self.attributes |= {key: value for key, value in attributes.items() if value is not None}


class RecordingTelemetry:
    """Telemetry double."""

    def __init__(self) -> None:
        self.spans: list[RecordedSpan] = []

    @contextmanager
    def span(self, name: str, *, key: str, attributes: Mapping[str, AttributeValue] | None = None) -> Iterator[RecordedSpan]:
        """See Telemetry."""
        span = RecordedSpan(name, key, dict(attributes or {}))
        self.spans.append(span)
        try:
            yield span
        finally:
            span.ended = True

    def context(self) -> TraceContext | None:
        """See Telemetry."""
        return None


class ScriptedGate:
    """TurnGate double: gives `feedback` in order, then lets turns complete."""

    def __init__(
        self, clock: FakeClock, *, feedback: Sequence[str] = (), events: Sequence[DurableMsg] = (), at_end_s: float = 0
    ) -> None:
        self.asked: list[TurnOutcome] = []
        self.ended: list[TurnOutcome] = []
        self._clock = clock
        self._feedback = list(feedback)
        self._events = tuple(events)
        self._at_end_s = at_end_s

    async def before_complete(self, outcome: TurnOutcome) -> str | None:
        """See TurnGate."""
        self.asked.append(outcome)
        return self._feedback.pop(0) if self._feedback else None

    async def at_end(self, outcome: TurnOutcome) -> Sequence[DurableMsg]:
        """See TurnGate."""
        self.ended.append(outcome)
        if self._at_end_s:
            await self._clock.sleep(self._at_end_s)
        return self._events

    def assert_done(self) -> None:
        """All feedback was given."""
        if self._feedback:
            raise AssertionError(f"feedback never asked for: {self._feedback}")


class AgentHarness:
    """Doubles of all ports, and sessions over them. Configuration fields can be given by name."""

    def __init__(
        self,
        steps: Sequence[ScriptStep] = (),
        *,
        commands: Sequence[Command] = (),
        files: Mapping[str, bytes] | None = None,
        spec: TaskSpec | None = None,
        source: Mapping[str, Any] | None = None,
        gate: Mapping[str, Any] | None = None,
        clock: FakeClock | None = None,
        price: float | None = None,
        agents: ScriptedAgents | None = None,
        approvals: ApprovalMemory | None = None,
        **config: Any,
    ) -> None:
        self.clock = clock or FakeClock()
        self.channel = MemoryChannel(self.clock)
        self.model = ScriptedModel(self.clock, steps, price=price)
        self.box = ScriptedSandbox(self.clock, commands, files)
        self.source = ScriptedSource(self.clock, self.box, **(source or {}))
        self.gate = ScriptedGate(self.clock, **(gate or {}))
        self.telemetry = RecordingTelemetry()
        self.agents = agents
        self.approvals = approvals
        self.config = SessionConfig(
            tenant_id="default",
            thread_id=self.channel.thread_id,
            spec=spec or default_spec(),
            model="model-x",
            **{"first_wait_s": 0, **config},
        )
        self.session = self.new_session()

    def new_session(self, restored: RestoredThread | None = None) -> Session:
        """A session over the present doubles."""
        doubles = (self.channel, self.model, self.source, self.gate, self.telemetry, self.clock)
        ports = Ports(*doubles, self.agents, self.approvals)
        return Session(self.config, ports, restored)

    def submit(self, op: Op | None = None) -> Submission:
        """Submit an Op; user input when none is given."""
        return self.channel.submit(op or turn_input())

    def next_owner(self) -> Session:
        """What another worker does after this one let go: a session over what was recorded."""
        self.channel = self.channel.successor()
        self.session = self.new_session(self.channel.restored())
        return self.session

    async def run(self) -> SessionOutcome:
        """Run the session, with a guard against hanging."""
        return await asyncio.wait_for(self.session.run(), HANGS_S)

    def start(self) -> "asyncio.Task[SessionOutcome]":
        """Run the session in the background."""
        return asyncio.create_task(self.run())

    async def until(self, holds: Callable[[], object]) -> None:
        """Let the session run until something holds. The clock stands still unless nothing else can run."""
        over = time.monotonic() + HANGS_S
        while not holds():
            if time.monotonic() > over:
                raise AssertionError("it never came true")
            await asyncio.sleep(0)

    def types(self) -> list[str]:
        """Types of the durable events, in order."""
        return [event.type for event in self.channel.events]

    def of_type(self, *types: str) -> list[Any]:
        """Durable events of these types."""
        return [event for event in self.channel.events if event.type in types]

    def end(self) -> DurableMsg:
        """The newest terminal event."""
        found: list[DurableMsg] = self.of_type("turn_completed", "turn_interrupted", "turn_failed")
        return found[-1]

    def assert_done(self) -> None:
        """All scripts were used, and the record is clean."""
        self.model.assert_done()
        self.box.assert_done()
        self.gate.assert_done()
        self.channel.assert_clean()
