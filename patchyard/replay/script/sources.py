"""Where the next step comes from: a script with a cursor per thread, or one sequence for all requests (tests)."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from patchyard.replay.script.model import Script, Step, ThreadScript


@dataclass(frozen=True)
class FirstRequest:
    """What a thread is matched by."""

    model: str
    text: str


@dataclass(frozen=True)
class Played:
    """A step and its number in its script."""

    number: int
    step: Step


class StepSource(Protocol):
    """Gives out steps. Implementers: PerThreadScript, SharedSequence."""

    def next_step(self, thread: str, first: Callable[[], FirstRequest]) -> Played | None:
        """The step for this request; None: nothing is left to say."""
        ...

    def unused(self) -> int:
        """Steps that nobody asked for, where that can be told."""
        ...


@dataclass
class _Cursor:
    script: ThreadScript
    step: int = 0
    repeated: int = 0

    def take(self) -> Played | None:
        steps = self.script.steps
        if self.step >= len(steps):
            return Played(len(steps) - 1, steps[-1]) if self.script.repeat_last else None
        played = Played(self.step, steps[self.step])
        self.repeated += 1
        if self.repeated >= played.step.times:
            self.step, self.repeated = self.step + 1, 0
        return played


class PerThreadScript:
    """Each thread plays the first script that matches its first request."""

    def __init__(self, script: Script) -> None:
        self._scripts = script.all_threads()
        self._cursors: dict[str, _Cursor] = {}

    def next_step(self, thread: str, first: Callable[[], FirstRequest]) -> Played | None:
        """See StepSource."""
        cursor = self._cursors.get(thread)
        if cursor is None:
            request = first()
            script = next((script for script in self._scripts if _matches(script, request)), None)
            if script is None:
                return None
            cursor = self._cursors[thread] = _Cursor(script)
        return cursor.take()

    def unused(self) -> int:
        """0: a script is not bound to be played to its end."""
        return 0


def _matches(script: ThreadScript, first: FirstRequest) -> bool:
    if script.match.model is not None and script.match.model != first.model:
        return False
    return all(text in first.text for text in script.match.texts())


class SharedSequence:
    """Steps in the order of the requests, whichever thread they come from; each must be used."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque()
        self._given = 0

    def add(self, step: Step) -> int:
        """Append a step; its number."""
        self._steps.append(step)
        return self._given + len(self._steps) - 1

    def next_step(self, thread: str, first: Callable[[], FirstRequest]) -> Played | None:
        """See StepSource."""
        if not self._steps:
            return None
        self._given += 1
        return Played(self._given - 1, self._steps.popleft())

    def unused(self) -> int:
        """Steps that were not asked for."""
        return len(self._steps)
