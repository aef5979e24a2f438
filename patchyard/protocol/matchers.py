"""Matchers of hooks: regular expressions of strangers, so none may take longer than its length allows."""

import functools
from collections.abc import Iterable

from pydantic_core import SchemaError, SchemaValidator, core_schema

MOST_CHARS = 1000
"""Of all matchers of a task: each of them has to be compiled."""
_OFFER = "Use names, `|`, groups, classes, and `.`, `*`, `+`, `?`"


def check_matchers(matchers: Iterable[str | None]) -> None:
    """ValueError: one of them can't be used, or they are too long altogether."""
    given = [matcher for matcher in matchers if matcher is not None]
    if sum(map(len, given)) > MOST_CHARS:
        raise ValueError(f"all matchers together may have {MOST_CHARS} characters. Use simpler ones")
    for matcher in given:
        if matcher != "*" and _compiled(matcher) is None:
            raise ValueError(f"the matcher {matcher!r} can't be used: no look-around, back references or counts. {_OFFER}")


def fits(matcher: str | None, subject: str) -> bool:
    """Whether the whole subject matches.

    A matcher that can't be used (0.1.0 took more) fits all: rather a guard too often than too rarely.
    """
    if matcher in (None, "", "*"):
        return True
    compiled = _compiled(matcher or "")
    return compiled is None or compiled.isinstance_python(subject)


@functools.lru_cache(maxsize=512)
def _compiled(matcher: str) -> SchemaValidator | None:
    """By an engine whose time grows with the length only. A count such as `a{1000}` would make a short text long."""
    if "{" in matcher:
        return None
    try:
        return SchemaValidator(core_schema.str_schema(pattern=f"^(?:{matcher})$", regex_engine="rust-regex"))
    except SchemaError:
        return None
