"""The one way out: everything that a session commits or shows goes through here.

It redacts, keeps the history, the open items and the rule "one item_completed per item_started", and writes in order.
A write costs a disk's fsync, so records that belong together are written together: those that are posted while a write is
under way, and those that come within one pass of the loop (a call and the start of its item), go into one.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

from patchyard.protocol.events import ItemCompleted, ItemStarted, LiveMsg
from patchyard.protocol.items import Item
from patchyard.protocol.model_items import ModelItem
from patchyard.protocol.rollout_lines import Compacted, LinePayload, Standing, WorldState

from .context.history import History
from .ports import ThreadChannel
from .redact import Redactor

T = TypeVar("T")

_MODEL_ITEMS: tuple[type, ...] = tuple(get_args(tagged)[0] for tagged in get_args(get_args(ModelItem)[0]))


GATHER_S = 0.005
"""Longest wait of `post_soon` for company."""


@dataclass
class _Entry:
    payloads: tuple[LinePayload, ...]
    turn_id: str | None
    submission_id: str | None
    consumed: tuple[str, ...]
    written: asyncio.Event = field(default_factory=asyncio.Event)


class Journal:
    """Writes a thread's records. LeaseLost from the channel is raised by every later call."""

    def __init__(self, channel: ThreadChannel, redactor: Redactor, history: History) -> None:
        self.redactor = redactor
        self.history = history
        self.open_items: dict[str, Item] = {}
        self.world: dict[str, Any] | None = None
        self.turn_id: str | None = None
        """The running turn; stamped on every record."""
        self.standing: Callable[[], Standing | None] = lambda: None
        """What is repeated after a Compacted, since recovery reads nothing before it; None: nothing."""
        self._channel = channel
        self._queue: deque[_Entry] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._alarm: asyncio.TimerHandle | None = None

    def post(self, *payloads: LinePayload, submission_id: str | None = None, consumed: Sequence[str] = ()) -> "_Entry":
        """Put records in line to be written; the order of calls is the order of records."""
        entry = self._line_up(payloads, submission_id, consumed)
        self._begin()
        return entry

    def post_soon(self, *payloads: LinePayload) -> None:
        """Like `post`, for records that others follow at once: they wait up to GATHER_S, and go with the next that is posted."""
        self._line_up(payloads, None, ())
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(GATHER_S, self._begin)

    async def commit(self, *payloads: LinePayload, submission_id: str | None = None, consumed: Sequence[str] = ()) -> None:
        """Post, and wait until the records are durable. Cancelling the caller does not cancel the write."""
        entry = self.post(*payloads, submission_id=submission_id, consumed=consumed)
        await entry.written.wait()
        if self._failure is not None:
            raise self._failure

    async def flush(self) -> None:
        """Wait until all that was posted is durable."""
        self._begin()
        while self._writer is not None and not self._writer.done():
            await asyncio.wait([self._writer])
        if self._failure is not None:
            raise self._failure

    async def finish_turn(
        self,
        *payloads: LinePayload,
        turn_id: str,
        consumed: Sequence[str] = (),
        answers: Mapping[str, Sequence[LinePayload]] | None = None,
        keep_lease: bool = False,
    ) -> bool:
        """See ThreadChannel.finish_turn. Can't be cut off half-way."""
        await self.flush()
        cleaned = tuple(self.redactor.payload(p) for p in payloads)
        told = {name: [self.redactor.payload(p) for p in records] for name, records in (answers or {}).items()}
        finishing = self._channel.finish_turn(cleaned, turn_id=turn_id, consumed=consumed, answers=told, keep_lease=keep_lease)
        done = await uninterrupted(finishing)
        if done:
            for payload in cleaned:
                self._track(payload)
            self.turn_id = None
        return done

    async def park(self, *payloads: LinePayload, turn_id: str, until_ms: int | None, awaits: Sequence[str] = ()) -> None:
        """See ThreadChannel.park."""
        await self.flush()
        parking = self._channel.park(self._take(payloads), turn_id=turn_id, until_ms=until_ms, awaits=awaits)
        await uninterrupted(parking)

    def live(self, msg: LiveMsg) -> None:
        """Show something now. Text that comes in pieces must have gone through a StreamRedactor."""
        self._channel.live(msg, turn_id=self.turn_id)

    def _take(self, payloads: Sequence[LinePayload]) -> tuple[LinePayload, ...]:
        cleaned: list[LinePayload] = []
        for payload in payloads:
            cleaned.append(self.redactor.payload(payload))
            if isinstance(payload, Compacted) and (standing := self.standing()) is not None:
                cleaned.append(self.redactor.payload(standing))
        for payload in cleaned:
            self._track(payload)
        return tuple(cleaned)

    def _track(self, payload: LinePayload) -> None:
        match payload:
            case ItemStarted():
                if payload.item.id in self.open_items:
                    raise AssertionError(f"item {payload.item.id} was started twice")
                self.open_items[payload.item.id] = payload.item
            case ItemCompleted():
                if self.open_items.pop(payload.item.id, None) is None:
                    raise AssertionError(f"item {payload.item.id} was completed without a start")
            case WorldState():
                self.world = payload.state if payload.full else {**(self.world or {}), **payload.state}
            case Compacted():
                self.history.restart(payload.replacement_history, window_number=payload.window_number)
                self.world = None
            case _ if isinstance(payload, _MODEL_ITEMS):
                self.history.append(payload)  # type: ignore[arg-type]
            case _:
                pass

    def _line_up(self, payloads: Sequence[LinePayload], submission_id: str | None, consumed: Sequence[str]) -> _Entry:
        if self._failure is not None:
            raise self._failure
        entry = _Entry(self._take(payloads), self.turn_id, submission_id, tuple(consumed))
        self._queue.append(entry)
        return entry

    def _begin(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._queue and (self._writer is None or self._writer.done()):
            self._writer = asyncio.create_task(self._write())

    async def _write(self) -> None:
        await asyncio.sleep(0)
        while self._queue:
            batch = self._next_batch()
            payloads = [p for entry in batch for p in entry.payloads]
            consumed = [c for entry in batch for c in entry.consumed]
            first = batch[0]
            try:
                await self._channel.commit(
                    payloads, turn_id=first.turn_id, submission_id=first.submission_id, consumed=consumed
                )
            except (Exception, asyncio.CancelledError) as error:
                self._failure = error
                batch += self._queue
                self._queue.clear()
                if isinstance(error, asyncio.CancelledError):
                    raise
                return
            finally:
                for entry in batch:
                    entry.written.set()

    def _next_batch(self) -> list[_Entry]:
        batch = [self._queue.popleft()]
        key = (batch[0].turn_id, batch[0].submission_id)
        while self._queue and (self._queue[0].turn_id, self._queue[0].submission_id) == key:
            batch.append(self._queue.popleft())
        return batch


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end even when the caller is cancelled meanwhile; then the cancellation goes on."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            await asyncio.wait([task])
        raise
