"""The `apply_patch` program of a running command: answers what its processes ask for, under the command's own policy."""

import asyncio
from dataclasses import replace
from typing import Any

from patchyard.agent.errors import AgentError, StopTurn
from patchyard.agent.ports import LeaseLost, PatchCall, PatchReply
from patchyard.agent.thread import Thread
from patchyard.protocol.policies import SandboxPolicy

from .hooked import with_hooks
from .work import PatchWork

_MOST = 500
"""Patches of one command: each that fits is records of the thread."""
_OVER = "The command's turn is over. Nothing was changed."


class PatchProgram:
    """The PatchHandler of one command. Each call is a file change of its own under the command's turn."""

    def __init__(self, thread: Thread, work: PatchWork, *, item_id: str, policy: SandboxPolicy) -> None:
        self._thread = thread
        self._work = work
        self._item_id = item_id
        self._policy = policy
        self._calls = 0
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def __call__(self, call: PatchCall) -> PatchReply:
        """See PatchHandler."""
        task = asyncio.current_task()
        if self._closed or task is None:
            return _refusal(_OVER)
        self._running.add(task)
        try:
            return await self._answer(call)
        finally:
            self._running.discard(task)

    def close(self) -> None:
        """Refuse what comes from now on, and cut off what runs; a write that was begun is done to its end."""
        self._closed = True
        for task in self._running:
            task.cancel()

    async def closed(self) -> None:
        """Wait until nothing runs any more."""
        if self._running:
            await asyncio.wait(self._running)

    async def _answer(self, call: PatchCall) -> PatchReply:
        self._calls += 1
        if self._calls > _MOST:
            return _refusal(f"A command may apply {_MOST} patches. Nothing was changed. Put more changes into one patch.")
        try:
            report = await self._apply(f"{self._item_id}_patch_{self._calls}", call)
        except AgentError as error:
            return _refusal(error.info.message)
        except StopTurn:
            self._thread.stop_asked.set()
            return _refusal("A person stopped the turn. Nothing was changed.")
        except LeaseLost:
            return _refusal(_OVER)
        return PatchReply(0, stdout=report if report.endswith("\n") else f"{report}\n")

    async def _apply(self, item_id: str, call: PatchCall) -> str:
        try:
            text = call.patch.decode()
        except UnicodeDecodeError as error:
            why = f"It is not UTF-8 text (byte {error.start}). Nothing was changed."
            raise self._work.unfit(item_id, why) from error
        settings = replace(self._thread.active_settings, sandbox=self._policy)

        async def write(patch: str) -> str:
            return await self._work.apply(item_id, patch, cwd=call.cwd, settings=settings, can_park=False)

        return await with_hooks(self._thread, item_id, text, write)


def _refusal(message: str) -> PatchReply:
    return PatchReply(1, stderr=f"{message}\n")
