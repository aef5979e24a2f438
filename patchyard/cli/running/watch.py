"""Follows a task to its end. Ctrl-C stops the task, a second one stops watching."""

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from patchyard.cli.context import notice
from patchyard.client import PatchyardClient, PatchyardError
from patchyard.protocol.events import Event

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_INTERRUPT_GRACE_S = 10.0
"""How long the end of an interrupted task is waited for; the agent stops within a second."""
_SILENT_S = 5.0
"""After so long without an event the service is asked whether it can work at all,"""
_ASK_AGAIN_S = 15.0
"""and again as long as nothing comes;"""
_TROUBLE_S = 2.0
"""more often while it can't."""


class Interrupts:
    """Ctrl-C (and SIGTERM) as events instead of an exception in the middle of something. Use it as `with`, inside the loop."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._pressed)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

    def _pressed(self) -> None:
        (self.second if self.first.is_set() else self.first).set()

    async def unless(self, pressed: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
        """Do the work; KeyboardInterrupt, with the work cancelled, when `pressed` is set before it is done."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(pressed.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise KeyboardInterrupt
            return task.result()
        finally:
            for each in (task, stop):
                each.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)


async def watch_task(
    client: PatchyardClient,
    task_id: str,
    show: Callable[[Event], None],
    *,
    interrupts: Interrupts,
    after: int | None = None,
    until: str | None = None,
    cancel_on_interrupt: bool = True,
) -> bool:
    """Show the events until the task's turn ends. True: Ctrl-C ended it first. PatchyardError: the stream was lost."""
    silence = _Silence(client)
    following = asyncio.ensure_future(_follow(client.task_events(task_id, after=after, until=until), show, silence))
    watching = asyncio.ensure_future(silence.watch())
    first = asyncio.ensure_future(interrupts.first.wait())
    second = asyncio.ensure_future(interrupts.second.wait())
    try:
        await asyncio.wait((following, first), return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            following.result()
            return False
        if cancel_on_interrupt:
            notice("Interrupting the task … (Ctrl-C again: stop watching at once)")
            await _cancel(client, task_id)
            await asyncio.wait((following, second), timeout=_INTERRUPT_GRACE_S, return_when=asyncio.FIRST_COMPLETED)
        return True
    finally:
        for task in (following, watching, first, second):
            task.cancel()
        await asyncio.gather(following, watching, first, second, return_exceptions=True)


async def _cancel(client: PatchyardClient, task_id: str) -> None:
    try:
        await asyncio.wait_for(client.cancel_task(task_id), _INTERRUPT_GRACE_S)
    except (PatchyardError, TimeoutError) as error:
        notice(f"The task could not be told: {error}. Try: patchyard tasks cancel {task_id}")


async def _follow(events: AsyncGenerator[Event, None], show: Callable[[Event], None], silence: "_Silence") -> None:
    async with aclosing(events):
        async for event in events:
            silence.broken()
            show(event)


class _Silence:
    """Says why nothing happens when a part of the service is away; the task itself only waits for it."""

    def __init__(self, client: PatchyardClient) -> None:
        self._client = client
        self._last = time.monotonic()
        self._said: str | None = None

    def broken(self) -> None:
        """An event came."""
        self._last = time.monotonic()

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            idle = time.monotonic() - self._last
            if self._said is None and idle < _SILENT_S:
                await asyncio.sleep(_SILENT_S - idle)
                continue
            self._say(await self._trouble())
            await asyncio.sleep(_ASK_AGAIN_S if self._said is None else _TROUBLE_S)

    def _say(self, trouble: str | None) -> None:
        if trouble == self._said:
            return
        if trouble is not None:
            notice(f"Waiting: {trouble}")
        elif self._said is not None:
            notice("The service is ready again.")
        self._said = trouble

    async def _trouble(self) -> str | None:
        """What is away, None: nothing."""
        with suppress(PatchyardError):
            readiness = await self._client.readiness()
            failed = [part for part in readiness.components if part.state == "failed"]
            return "; ".join(f"{part.name} fails. {part.detail}" for part in failed) or None
        return "the service does not answer. See `patchyard status`."
