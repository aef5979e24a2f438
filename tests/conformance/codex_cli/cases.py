"""The scripts that both programs play, and the replay server's source that plays them.

A case has `steps` and `repeat_last` (docs/subsystems/replay.md) and may have
files    the workspace before it: path -> text
codex    overrides of Codex' configuration, as after its `-c`
hooks    event -> hooks, each with a command and perhaps a matcher; what a hook writes to hook*.json is its input
schema   JSON Schema of the answer
window   tokens of the model's context window; at 80 % of it both compact
sockets  over a WebSocket
do       what a person does, in order; one turn when absent
offer    what else of its requests is compared: patterns of names, see `shape.Observed.offer`
"""

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from patchyard.protocol.tasks import HookEvent, HookSpec
from patchyard.replay.script import FirstRequest, PerThreadScript, Played, Script, Step

HERE = Path(__file__).parent
PROMPT = "Do it."
_SESSION = re.compile(r"Process running with session ID (\d+)")


class Action(BaseModel):
    """One thing that a person does. Steers and interrupts wait for the n-th request to the model or the n-th command's start."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    turn: str | None = None
    steer: str | None = None
    interrupt: Literal[True] | None = None
    compact: Literal[True] | None = None
    at_request: int = 0
    at_command: int = 0

    @model_validator(mode="after")
    def _one(self) -> "Action":
        if sum(value is not None for value in (self.turn, self.steer, self.interrupt, self.compact)) != 1:
            raise ValueError("an action is one of turn, steer, interrupt, compact")
        return self


class Case(BaseModel):
    """See the module."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    steps: tuple[Step, ...]
    repeat_last: bool = False
    files: dict[str, str] = Field(default_factory=dict)
    codex: tuple[str, ...] = ()
    hooks: dict[HookEvent, tuple[HookSpec, ...]] = Field(default_factory=dict)
    answer_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    window: int | None = None
    sockets: bool = False
    offer: tuple[str, ...] = ()
    do: tuple[Action, ...] = (Action(turn=PROMPT),)

    @property
    def is_conversation(self) -> bool:
        """More than one turn without a word from outside."""
        return len(self.do) > 1

    @property
    def overrides(self) -> tuple[str, ...]:
        """Of Codex' configuration."""
        if self.window is None:
            return self.codex
        limit = self.window * 8 // 10
        return (*self.codex, f"model_context_window={self.window}", f"model_auto_compact_token_limit={limit}")

    def lay_files(self, workspace: Path) -> None:
        """Make the workspace."""
        for name, text in self.files.items():
            path = workspace / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


class LiveScript(PerThreadScript):
    """Plays a case: knows the session ids that a program told, and how many requests came."""

    def __init__(self, case: Case) -> None:
        super().__init__(Script(steps=case.steps, repeat_last=case.repeat_last))
        self.requests = Counted()

    def next_step(self, thread: str, first: Callable[[], FirstRequest]) -> Played | None:
        """See StepSource; `$SESSION` in arguments becomes the newest session id of the request."""
        played = super().next_step(thread, first)
        self.requests.add()
        if played is None or "$SESSION" not in played.step.model_dump_json():
            return played
        told = _SESSION.findall(first().text)
        text = json.dumps(played.step.model_dump(mode="json", exclude_unset=True))
        step = Step.model_validate_json(text.replace('"$SESSION"', told[-1] if told else "0"))
        return Played(played.number, step)


class Counted:
    """Counts something, and waits until so much of it was there."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = asyncio.Event()

    def add(self) -> None:
        """One more."""
        self._count += 1
        self._changed.set()

    async def reach(self, count: int) -> None:
        """Wait until there were so many."""
        while self._count < count:
            self._changed.clear()
            await self._changed.wait()


def _read(path: Path) -> Mapping[str, Any]:
    return yaml.safe_load(path.read_text())


def load_cases() -> Mapping[str, Case]:
    """All cases by name."""
    cases = [
        Case(name=name, **fields) for path in sorted((HERE / "scripts").glob("*.yaml")) for name, fields in _read(path).items()
    ]
    by_name = {case.name: case for case in cases}
    assert len(by_name) == len(cases), "a name is used twice"
    return by_name
