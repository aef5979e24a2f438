"""What ends a turn from outside: somebody who wants it to stop, and the clock."""

import asyncio
from collections.abc import Callable
from typing import Any

from patchyard.agent.budget import Spend
from patchyard.agent.ports import Clock

from .state import StopKind


class StopSwitch:
    """Cancels the turn's task, and knows why."""

    def __init__(self) -> None:
        self._why: StopKind | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancels = 0
        """Cancellations of our own that the task has not seen yet."""

    def why(self) -> StopKind | None:
        """None: the turn goes on."""
        return self._why

    def attach(self) -> None:
        """The running task is the turn's."""
        self._task = asyncio.current_task()

    def pull(self, kind: StopKind) -> None:
        """Cut the task off at its next await point. The first reason wins.

        But time that is over is none any more when somebody wants the turn to stop: it might be asked for more.
        """
        if self._why not in (None, "wall_time"):
            return
        self._why = kind
        if self._task is not None:
            self._cancels += 1
            self._task.cancel()

    def seen(self) -> None:
        """The task was cut off by us, and does something else now."""
        while self._task is not None and self._cancels:
            self._cancels -= 1
            self._task.uncancel()

    def reset(self) -> None:
        """The turn goes on after all."""
        self._why = None


class Watchdog:
    """Calls `bark` when the turn's wall time is over, as long as it is armed."""

    def __init__(self, spend: Spend, clock: Clock, bark: Callable[[], None]) -> None:
        self._spend = spend
        self._clock = clock
        self._bark = bark
        self._task: asyncio.Task[None] | None = None

    def arm(self) -> None:
        """Watch the limit as it is now."""
        self.disarm()
        self._task = asyncio.create_task(self._watch())

    def disarm(self) -> None:
        """Let the time pass."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _watch(self) -> None:
        while (left := self._spend.wall_time_left(self._clock.now_ms())) is not None:
            if left <= 0:
                self._bark()
                return
            await self._clock.sleep(left)
