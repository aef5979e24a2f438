"""Rollout lines as JSON, and back."""

import json
from collections.abc import Iterable, Iterator
from functools import cache

from pydantic import TypeAdapter, ValidationError

from patchyard.protocol.rollout_lines import RolloutLine

from .errors import LineInvalid, OrdinalGap
from .ports import StoredLine


@cache
def _adapter() -> TypeAdapter[RolloutLine]:
    # Built once, at first use: it takes tens of milliseconds and importing must do nothing.
    return TypeAdapter(RolloutLine)


def encode_line(line: RolloutLine) -> bytes:
    """One line of JSON, without the newline. Fields that were not set are left out only where they are None."""
    return _adapter().dump_json(line, exclude_none=True)


def decode_line(data: bytes | str) -> RolloutLine:
    """A line. LineInvalid names the field that is wrong."""
    try:
        return _adapter().validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "line"
        raise LineInvalid(f"Not a rollout line of this version: {where}: {first['msg']}.") from error


def number_line(data: bytes) -> StoredLine | None:
    """The line with its number, without looking further into it; None when it is torn or not a numbered JSON object."""
    try:
        value = json.loads(data)
    except ValueError:
        return None
    ordinal = value.get("ordinal") if isinstance(value, dict) else None
    if not isinstance(ordinal, int) or isinstance(ordinal, bool) or ordinal < 0:
        return None
    return StoredLine(ordinal, data)


def split_segment(data: bytes) -> Iterator[StoredLine]:
    """The valid lines of a segment up to the first torn or invalid one: nothing behind damage can be trusted."""
    for raw in data.split(b"\n"):
        if not raw.strip():
            continue
        line = number_line(raw)
        if line is None:
            return
        yield line


def check_lineage(lines: Iterable[RolloutLine], *, first: int | None = None) -> Iterator[RolloutLine]:
    """The same lines, checked on the way: numbers go up by one, from `first` when given. OrdinalGap."""
    expected = first
    for line in lines:
        if expected is not None and line.ordinal != expected:
            raise OrdinalGap(expected, line.ordinal)
        expected = line.ordinal + 1
        yield line
