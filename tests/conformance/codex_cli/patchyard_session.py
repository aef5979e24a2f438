"""Runs a Session as a worker does: the real model client over the loopback, real boxes; only the queue is in memory."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from patchyard.adapters.model import ProviderConfig, ResponsesClient
from patchyard.adapters.sandbox import Box, BoxLabels, BoxMount, BoxSpec, DockerBoxes
from patchyard.agent.config import Ports, SessionConfig
from patchyard.agent.session import Session
from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.events import DurableMsg, ItemStarted, OpRejected, TurnFailed
from patchyard.protocol.items import CommandExecutionItem
from patchyard.protocol.ops import Compact, Interrupt, Steer
from patchyard.protocol.policies import ApprovalMode, DangerFullAccess
from patchyard.testing.builders import spec, turn_input
from patchyard.testing.harness import RecordingTelemetry, ScriptedGate
from patchyard.testing.memory_channel import MemoryChannel
from tests.conformance.codex_cli.cases import Case, Counted
from workers.parts import SystemClock

_ENDS = {"turn_completed": "completed", "turn_failed": "failed", "turn_interrupted": "interrupted"}


class _Channel(MemoryChannel):
    """Says when a command starts and when a turn ends."""

    def __init__(self, clock: SystemClock) -> None:
        super().__init__(clock)  # type: ignore[arg-type]
        self.commands = Counted()
        self.turns = Counted()

    @property
    def ends(self) -> list[str]:
        """How turns, and Ops that would have been turns, ended."""
        return [_end(event) for event in self.events if _end(event)]

    def _check_event(self, msg: DurableMsg, turn_id: str | None) -> None:
        super()._check_event(msg, turn_id)
        if isinstance(msg, ItemStarted) and isinstance(msg.item, CommandExecutionItem):
            self.commands.add()
        elif _end(msg):
            self.turns.add()


def _end(msg: DurableMsg) -> str:
    would_be_turn = isinstance(msg, OpRejected) and msg.op in ("turn_input", "compact")
    return "rejected" if would_be_turn else _ENDS.get(msg.type, "")


class _OneBox:
    """SandboxSource: a box over a folder of this machine, started when something asks for it."""

    def __init__(self, boxes: DockerBoxes, image: str, workspace: Path, thread_id: str) -> None:
        self._boxes, self._workspace = boxes, workspace
        self._spec = BoxSpec(
            image=image,
            labels=BoxLabels(tenant="default", thread=thread_id, turn="", worker="conformance"),
            policy=DangerFullAccess(),
            mounts=(BoxMount(workspace, "/workspace"),),
            memory_mb=256,
            user="1000:1000" if os.getuid() == 0 else f"{os.getuid()}:{os.getgid()}",
        )
        self._task: asyncio.Task[Box] | None = None

    def prepare(self) -> None:
        """See SandboxSource."""
        self._task = self._task or asyncio.create_task(self._boxes.start(self._spec))

    async def get(self) -> Box:
        """See SandboxSource."""
        self.prepare()
        assert self._task is not None
        return await asyncio.shield(self._task)

    async def instructions(self, folder: str = "") -> Sequence[tuple[str, str]]:
        """See SandboxSource. Cases have such a file at the root only."""
        del folder
        path = self._workspace / "AGENTS.md"
        return [("AGENTS.md", path.read_text())] if path.is_file() else []

    async def close(self) -> None:
        """Give the box back, when there was one."""
        if self._task is not None:
            await (await self._task).close()


async def play(boxes: DockerBoxes, image: str, workspace: Path, case: Case, *, base_url: str, requests: Counted) -> list[str]:
    """How the turns ended, in order."""
    clock = SystemClock()
    channel = _Channel(clock)
    source = _OneBox(boxes, image, workspace, channel.thread_id)
    config = SessionConfig(
        tenant_id="default",
        thread_id=channel.thread_id,
        spec=spec(approval=ApprovalMode.NEVER, sandbox=DangerFullAccess(), hooks=case.hooks),
        model="gpt-5.5",
        stream_retries=2,
        linger_s=60,
        model_context_window=case.window or 272_000,
    )
    provider = ProviderConfig(name="replay", base_url=base_url, request_retries=1, supports_websockets=case.sockets)
    async with ResponsesClient(provider) as model:
        ports = Ports(channel, model, source, ScriptedGate(clock), RecordingTelemetry(), clock)
        running = asyncio.create_task(Session(config, ports).run())
        try:
            acting = asyncio.create_task(_act(channel, case, requests))
            await asyncio.wait([running, acting], return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                acting.cancel()
                raise AssertionError(f"the session ended early: {running.result()}")
            await acting
        finally:
            running.cancel()
            await asyncio.wait([running])
            await source.close()
    channel.assert_clean()
    faults = [e.error for e in channel.events if isinstance(e, TurnFailed) and e.error.code is ErrorCode.INTERNAL]
    assert not faults, "Patchyard has a fault; see the log"
    return channel.ends


async def _act(channel: _Channel, case: Case, requests: Counted) -> None:
    turn, turns = "", 0
    for action in case.do:
        await requests.reach(action.at_request)
        await channel.commands.reach(action.at_command)
        if action.turn is not None:
            await channel.turns.reach(turns)
            turn = channel.submit(turn_input(action.turn, output_schema=case.answer_schema)).id
            turns += 1
        elif action.steer is not None:
            channel.submit(turn_input(action.steer, mode=Steer(expected_turn_id=turn)))
        elif action.interrupt is not None:
            channel.submit(Interrupt(turn_id=turn))
        else:
            await channel.turns.reach(turns)
            channel.submit(Compact())
            turns += 1
    await channel.turns.reach(turns)
