"""What the hub reads from. `adapters.queue.QueueCore` and the in-memory double satisfy it without knowing this module."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol


class Line(Protocol):
    """A committed record."""

    @property
    def ordinal(self) -> int:
        """Its number in the thread."""
        ...

    @property
    def json(self) -> bytes:
        """The RolloutLine as compact JSON."""
        ...


class Text(Protocol):
    """Text so far of an open item. Offsets count bytes of the whole text as escaped JSON."""

    @property
    def item_key(self) -> str:
        """Item and kind of delta."""
        ...

    @property
    def fence(self) -> int:
        """Lease under which it was written; offsets begin anew with each."""
        ...

    @property
    def offset(self) -> int:
        """Where `text` begins."""
        ...

    @property
    def head(self) -> bytes:
        """JSON of the event up to the inside of its delta; the whole event when there is no text."""
        ...

    @property
    def text(self) -> bytes | None:
        """The escaped delta."""
        ...


class Page(Protocol):
    """Records and open texts at one moment."""

    @property
    def tenant_id(self) -> str:
        """Owner of the thread; empty when it is not known."""
        ...

    @property
    def lines(self) -> Sequence[Line]:
        """Records, oldest first."""
        ...

    @property
    def trimmed_through(self) -> int | None:
        """Last ordinal that only the rollout has."""
        ...

    @property
    def complete(self) -> bool:
        """Whether `lines` reaches the newest record."""
        ...

    @property
    def open_texts(self) -> Sequence[Text]:
        """Of that moment; empty when not complete."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the thread was closed: nothing comes after the newest record."""
        ...

    @property
    def position(self) -> str:
        """Newest entry of the firehose at that moment: what came before it is in here."""
        ...


class Fired(Protocol):
    """One entry of the firehose: a committed event (`ordinal` set), or a live one with the attributes of Text."""

    @property
    def id(self) -> str:
        """Position in the firehose."""
        ...

    @property
    def thread_id(self) -> str:
        """Thread that it belongs to."""
        ...

    @property
    def tenant_id(self) -> str:
        """Owner of the thread; set on committed events."""
        ...

    @property
    def ordinal(self) -> int | None:
        """Number of the committed event."""
        ...

    @property
    def line(self) -> bytes | None:
        """Its RolloutLine; None: too big, read it from the thread's stream."""
        ...

    @property
    def item_key(self) -> str:
        """See Text."""
        ...

    @property
    def fence(self) -> int:
        """See Text."""
        ...

    @property
    def offset(self) -> int:
        """See Text."""
        ...

    @property
    def head(self) -> bytes:
        """See Text."""
        ...

    @property
    def text(self) -> bytes | None:
        """See Text."""
        ...


class EventSource(Protocol):
    """Streams of one shard. Every method may raise: the hub waits and reads on."""

    async def snapshot(self, thread_id: str, *, after: int | None, limit: int) -> Page:
        """At most `limit` records after an ordinal and the open texts, read in one step."""
        ...

    async def fire_position(self) -> str:
        """Position of the newest entry of the firehose."""
        ...

    async def fire_oldest(self) -> str:
        """Position of the oldest entry that can still be read."""
        ...

    async def read_fire(self, after_id: str) -> Sequence[Fired]:
        """Entries after a position; waits a short while for news."""
        ...


History = Callable[[str, str, int | None, int], AsyncIterator[Line]]
"""(tenant id, thread id, after, through) -> the records in between, from the rollout. `after` None: from the first."""
