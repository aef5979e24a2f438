"""Where in patchyard.toml a setting stands, so that whoever reads of an error finds the line."""

import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pydantic import ValidationError

from patchyard.settings import Settings

FILE = "patchyard.toml"
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_HEADER = re.compile(r"\s*\[\[?([^\[\]]+)\]\]?\s*(?:#.*)?$")


class SettingProblem(NamedTuple):
    """A setting that can't be used."""

    name: str
    """Dotted, as in patchyard.toml."""
    kind: str
    """Pydantic's name of the kind of mistake."""
    message: str
    place: str | None
    """`<file>:<line>`; None: it does not come from the file."""

    @property
    def text(self) -> str:
        """The message, and where to look."""
        return self.message if self.place is None else f"{self.message} ({self.place})"


def problems(error: ValidationError) -> tuple[SettingProblem, ...]:
    """What is wrong with the settings, one entry per mistake."""
    return tuple(
        SettingProblem(
            ".".join(str(part) for part in item["loc"]),
            item["type"],
            item["msg"].removeprefix("Value error, "),
            _place(item["loc"]),
        )
        for item in error.errors(include_url=False, include_input=False)
    )


def complaint(error: ValueError) -> str:
    """All that is wrong in one line: settings, or a file that is no TOML."""
    if not isinstance(error, ValidationError):
        return f"{FILE}: {error}"
    return "; ".join(f"{problem.name}: {problem.text}" for problem in problems(error))


def _place(loc: Sequence[str | int]) -> str | None:
    variable = f"PATCHYARD_{loc[0]}".upper() if loc else ""
    if not loc or any(name.upper() == variable or name.upper().startswith(f"{variable}__") for name in os.environ):
        return None  # the environment goes before the file
    file = Settings.model_construct().home / FILE
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    line = line_of(text, [str(part) for part in loc])
    return None if line is None else f"{file}:{line}"


def line_of(text: str, path: Sequence[str]) -> int | None:
    """The line (from 1) of the table or key that is nearest to `path`; None when not even its first part is there."""
    best, length = None, 0
    for number, found in _entries(text):
        shared = list(found) == list(path[: len(found)])
        if shared and len(found) > length:
            best, length = number, len(found)
    return best


def _entries(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Tables and keys with their lines. Strings of several lines may look like keys: their paths fit nothing that is asked for."""
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if (header := _HEADER.match(line)) is not None:
            table = _parts(f"[{header.group(1)}]")
            yield number, table
        elif (key := _KEY.match(line)) is not None:
            yield number, (*table, *_parts(f"{key.group(1)} = 0"))


def _parts(source: str) -> tuple[str, ...]:
    try:
        value: object = tomllib.loads(source)
    except tomllib.TOMLDecodeError:
        return ()
    parts: list[str] = []
    while isinstance(value, dict) and value:
        (name, value), *_ = value.items()
        parts.append(name)
    return tuple(parts)
