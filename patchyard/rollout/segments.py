"""Names of segments. `<first>.jsonl` is written while a turn runs, `<first>-<last>.jsonl` when it was merged."""

import re
from dataclasses import dataclass

from patchyard.protocol.ids import created_at

_NAME = re.compile(r"([0-9]{20})(?:-([0-9]{20}))?\.jsonl")


@dataclass(frozen=True, order=True)
class Segment:
    """A stored piece of a thread's rollout."""

    first: int
    """Ordinal of its first record."""
    last: int | None
    """Ordinal of its last record where the name tells it (merged)."""
    key: str

    @property
    def merged(self) -> bool:
        """Whether the name tells what is inside."""
        return self.last is not None


def thread_prefix(tenant_id: str, thread_id: str) -> str:
    """Where a thread's segments are. The date is the thread's, so the id is enough to find them. ValueError: not a UUIDv7."""
    day = created_at(thread_id)
    return f"{tenant_id}/rollouts/{day:%Y/%m/%d}/{thread_id}/"


def segment_key(prefix: str, first: int, last: int | None = None) -> str:
    """Key of a segment below its thread's prefix. Twenty digits, so that keys sort as numbers."""
    if last is None:
        return f"{prefix}{first:020}.jsonl"
    return f"{prefix}{first:020}-{last:020}.jsonl"


def parse_key(key: str) -> Segment | None:
    """The segment that a key names; None: it is none (something else lies there)."""
    match = _NAME.fullmatch(key.rpartition("/")[2])
    if match is None:
        return None
    first, last = int(match[1]), int(match[2]) if match[2] is not None else None
    if last is not None and last < first:
        return None
    return Segment(first, last, key)
