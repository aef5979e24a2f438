"""Ids that can be made again: a worker that recovers a turn gives its spans the ids that the first worker would have given."""

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from opentelemetry.sdk.trace.id_generator import IdGenerator


@dataclass(frozen=True)
class NextIds:
    """Ids for the very next span. `trace_id` counts only when it has no parent."""

    span_id: int
    trace_id: int | None = None


_next_ids: ContextVar[NextIds | None] = ContextVar("patchyard_next_ids", default=None)


def span_id_for(turn_id: str, key: str) -> int:
    """64 bits, never 0, from a turn and what the span is about."""
    digest = hashlib.blake2b(f"{turn_id}/{key}".encode(), digest_size=8, person=b"patchyard-span").digest()
    return int.from_bytes(digest, "big") or 1


def trace_id_for(turn_id: str) -> int:
    """128 bits, never 0, for a turn whose submission brought no trace."""
    digest = hashlib.blake2b(turn_id.encode(), digest_size=16, person=b"patchyard-trace").digest()
    return int.from_bytes(digest, "big") or 1


class DerivedIds(IdGenerator):
    """Gives the ids that `use` laid out; random ones otherwise."""

    @contextmanager
    def use(self, ids: NextIds) -> Iterator[None]:
        """Spans started inside get these ids; start exactly one."""
        token = _next_ids.set(ids)
        try:
            yield
        finally:
            _next_ids.reset(token)

    def generate_span_id(self) -> int:
        """64 bits, not 0."""
        given = _next_ids.get()
        return given.span_id if given is not None else secrets.randbits(64) or 1

    def generate_trace_id(self) -> int:
        """128 bits, not 0."""
        given = _next_ids.get()
        if given is not None and given.trace_id is not None:
            return given.trace_id
        return secrets.randbits(128) or 1

    def is_trace_id_random(self) -> bool:
        """Derived ids are hashes, hence spread evenly."""
        return True
