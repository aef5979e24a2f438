"""Follows a task to its end. Ctrl-C stops the task, a second one stops watching."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import NamedTuple

from patchyard.cli.context import notice
from patchyard.client import PatchyardClient, PatchyardError
from patchyard.protocol.events import Event

_INTERRUPT_GRACE_S = 10.0
"""How long the end of an interrupted task is waited for; the agent stops within a second."""


class Watched(NamedTuple):
    """How watching ended."""

    interrupted: bool
    last_ordinal: int | None


class _Interrupt:
    """Ctrl-C as an event instead of an exception in the middle of something."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def pressed(self) -> None:
        """Count."""
        (self.second if self.first.is_set() else self.first).set()


async def watch_task(
    client: PatchyardClient,
    task_id: str,
    show: Callable[[Event], None],
    *,
    after: int | None = None,
    until: str | None = None,
    cancel_on_interrupt: bool = True,
) -> Watched:
    """Show the events until the task's turn ends. PatchyardError: the stream was lost."""
    interrupt = _Interrupt()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt.pressed)
    last = after
    following: asyncio.Task[int | None] = asyncio.ensure_future(
        _follow(client.task_events(task_id, after=after, until=until), show, after)
    )
    first = asyncio.ensure_future(interrupt.first.wait())
    second = asyncio.ensure_future(interrupt.second.wait())
    try:
        await asyncio.wait((following, first), return_when=asyncio.FIRST_COMPLETED)
        if not interrupt.first.is_set() or not cancel_on_interrupt:
            last = await following if following.done() else None
            return Watched(interrupt.first.is_set(), last)
        notice("Interrupting the task … (Ctrl-C again: stop watching at once)")
        try:
            await asyncio.wait_for(client.cancel_task(task_id), _INTERRUPT_GRACE_S)
            await asyncio.wait((following, second), timeout=_INTERRUPT_GRACE_S, return_when=asyncio.FIRST_COMPLETED)
        except (PatchyardError, TimeoutError) as error:
            notice(f"The task could not be told: {error}")
        return Watched(True, last)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        for task in (following, first, second):
            task.cancel()
        await asyncio.gather(following, first, second, return_exceptions=True)


async def _follow(events: AsyncGenerator[Event, None], show: Callable[[Event], None], after: int | None) -> int | None:
    last = after
    async with aclosing(events):
        async for event in events:
            show(event)
            last = event.ordinal if event.ordinal is not None else last
    return last
