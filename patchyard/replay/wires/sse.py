"""A response as server-sent events."""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from typing import assert_never

from patchyard.replay.connection import ClientClosed, HttpConnection
from patchyard.replay.conversation import Exchange
from patchyard.replay.player import Frame, Performance
from patchyard.replay.reading import error_body
from patchyard.replay.script import ErrorSpec, Step

JSON = {"content-type": "application/json"}
SSE = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}


class SseWire:
    """Answers one request of the Responses API. A wire with other frames overrides `encode`."""

    def __init__(self, connection: HttpConnection, exchange: Exchange) -> None:
        self._connection, self._exchange = connection, exchange

    async def answer(self) -> None:
        """Refuse, fail or play, as the script says. ClientClosed: the connection is of no more use."""
        step = self._exchange.step
        if step is None:
            await self._refuse()
        elif step.error is not None and step.error.status is not None:
            if step.delay_ms:
                await self._connection.unless_closed(asyncio.sleep(step.delay_ms / 1000))
            await self._fail(step.error, step.headers)
        else:
            await self._play(step)

    def encode(self, frames: Iterable[Frame]) -> Iterable[tuple[bytes, float]]:
        """Bytes to send, each with the pause before it."""
        return ((frame.sse(), frame.delay_s) for frame in frames)

    async def _refuse(self) -> None:
        entry = self._exchange.entry
        entry.status, entry.outcome = 400, "refused"
        body = json.dumps(error_body("script_exhausted", exhausted(self._exchange)))
        await self._connection.respond(400, body.encode(), headers=JSON)

    async def _fail(self, error: ErrorSpec, more: Mapping[str, str]) -> None:
        assert error.status is not None  # noqa: S101 - the caller looked
        entry = self._exchange.entry
        entry.status, entry.outcome = error.status, "error"
        headers = {**JSON, **more}
        if error.retry_after is not None:
            headers["retry-after"] = f"{error.retry_after:g}"
        body = error.body if error.body is not None else json.dumps(error_body(error.code, error.message, error.type))
        await self._connection.respond(error.status, body.encode(), headers=headers)

    async def _play(self, step: Step) -> None:
        performance = self._exchange.perform(step)
        headers = {**SSE, "x-request-id": self._exchange.request_id, **step.headers}
        stream = self._stream(performance, headers, step.delay_ms / 1000, lambda: self._exchange.ended(performance))
        await self._connection.unless_closed(stream)
        if performance.ending == "cut":
            raise ClientClosed

    async def _stream(
        self, performance: Performance, headers: Mapping[str, str], delay_s: float, ended: Callable[[], None]
    ) -> None:
        """Send the frames, those without a delay between them in one write."""
        connection = self._connection
        if delay_s:
            await asyncio.sleep(delay_s)
        await connection.start(200, headers)
        waiting: list[bytes] = []
        for data, pause_s in self.encode(performance.frames):
            if pause_s:
                await connection.send(b"".join(waiting))
                waiting.clear()
                await asyncio.sleep(pause_s)
            waiting.append(data)
            self._exchange.entry.events += 1
        if performance.ending != "hang":
            ended()
        await connection.send(b"".join(waiting))
        match performance.ending:
            case "complete":
                await connection.finish()
            case "hang":
                await asyncio.Event().wait()
            case "cut":
                pass
            case _:
                assert_never(performance.ending)


def exhausted(exchange: Exchange) -> str:
    """What a client is told that asks for more than there is."""
    return (
        f"the replay script has no further step for thread {exchange.call.thread} (request {exchange.call.number}); "
        "add a step, or set repeat_last: true"
    )
