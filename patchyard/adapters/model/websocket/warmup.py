"""A socket that is opened before a thread's next request, and told instructions and tools meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import httpx

from patchyard.adapters.model.connections.sse import SseEvent
from patchyard.adapters.model.decode import Decoder
from patchyard.adapters.model.errors import ClassifiedError
from patchyard.adapters.model.websocket.socket import PROTOCOL_ERRORS, SocketRefused, WebSocket, closing_on_error
from patchyard.agent.ports import ResponseCompleted
from patchyard.protocol.errors import ErrorCode


class WarmUpFailed(Exception):
    """The socket was open and is of no use: another one has to be opened."""


class Announcement:
    """Instructions and tools without a question. Its answer has an id to go on from, and no output."""

    def __init__(self, message: bytes, head: bytes, decoder: Decoder) -> None:
        self.message = message
        self.head = head
        """What the server knows once it has answered."""
        self.response_id: str | None = None
        """Of its answer; None: it was not answered yet."""
        self._decoder = decoder

    def rest(self, messages: Sequence[bytes]) -> list[bytes]:
        """What of these is not its answer any more. ClassifiedError: it was refused."""
        for at, message in enumerate(messages):
            if self.response_id is not None:
                return list(messages[at:])
            for event, _ in self._decoder.feed([SseEvent(b"", message)]):
                if isinstance(event, ResponseCompleted):
                    self.response_id = event.response_id
        return []


class Owner(Protocol):
    """Whose socket it is. Implementer: thread.ThreadSocket."""

    prewarms: bool

    async def warmed(self, warmup: "WarmUp", socket: WebSocket) -> None:
        """It is open, and the announcement was answered."""
        ...

    async def not_warmed(self, warmup: "WarmUp") -> None:
        """It failed."""
        ...


class WarmUp:
    """Opens the socket and reads the answer, each in a task. A request takes the socket as soon as it is open, answered or not."""

    def __init__(
        self,
        owner: Owner,
        connect: Callable[[], Awaitable[WebSocket]],
        announcement: Announcement | None,
        *,
        patience_s: float,
    ) -> None:
        """Without an `announcement` the socket is only opened. `patience_s`: silence after which it is given up."""
        self.announcement = announcement
        self._owner, self._connect, self._patience_s = owner, connect, patience_s
        self._failed = False
        loop = asyncio.get_running_loop()
        self._opening = loop.create_task(self._open(), name="model-socket-opens")
        self._reading = loop.create_task(self._read(), name="model-socket-warms-up")

    async def socket(self) -> WebSocket:
        """The open socket; its messages are the caller's from now on. WarmUpFailed; what went wrong with opening it is raised."""
        socket = await asyncio.shield(self._opening)
        await _stop(self._reading)
        if self._failed:
            raise WarmUpFailed
        return socket

    async def stop(self) -> None:
        """Close what was opened. Twice is harmless."""
        await _stop(self._reading)
        await _stop(self._opening)
        if not self._opening.cancelled() and self._opening.exception() is None:
            await self._opening.result().close()

    async def _open(self) -> WebSocket:
        socket = await self._connect()
        if self.announcement is not None:
            async with closing_on_error(socket):
                await socket.send(self.announcement.message)
        return socket

    async def _read(self) -> None:
        """What goes wrong is nobody's business yet: the request that comes finds out for itself."""
        try:
            socket = await asyncio.shield(self._opening)
            while self.announcement is not None and self.announcement.response_id is None:
                self.announcement.rest(await socket.receive(self._patience_s))
        except (ClassifiedError, SocketRefused, httpx.TransportError, *PROTOCOL_ERRORS) as problem:
            self._failed = True
            note_refusal(self._owner, problem)
            await self._owner.not_warmed(self)
        else:
            await self._owner.warmed(self, socket)


def note_refusal(owner: Owner, problem: Exception) -> None:
    """A server that does not know announcements is not told anything in advance again."""
    if isinstance(problem, ClassifiedError) and problem.code is ErrorCode.MODEL_BAD_REQUEST:
        owner.prewarms = False


async def _stop(task: "asyncio.Task[None] | asyncio.Task[WebSocket]") -> None:
    if task is not asyncio.current_task() and not task.done():
        task.cancel()
        await asyncio.wait({task})
