"""Reads scripts (YAML or JSON) and says where a mistake is."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from patchyard.replay.errors import ScriptError
from patchyard.replay.script.model import TAG_PREFIX, Script

MAX_PROBLEMS = 20
"""More would hide the first."""


def load_script(path: Path) -> Script:
    """The script in a file. ScriptError: not readable, not YAML or JSON, or not a script."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is not UTF-8 text"
        raise ScriptError(str(path), (f"cannot be read: {reason}",)) from problem
    return parse_script(text, source=str(path))


def parse_script(text: str, *, source: str = "<text>") -> Script:
    """The script in a text. ScriptError names the field's path and its line."""
    data = _json(text)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as problem:
        if data is None:
            raise ScriptError(source, (_yaml_problem(problem),)) from problem
        # JSON with tabs is no YAML: mistakes are then told without a line.
        node = None
    duplicates = tuple(_duplicate_keys(node, ""))
    if duplicates:
        raise ScriptError(source, duplicates)
    if data is None:
        data = yaml.safe_load(text)
    if not isinstance(data, dict):
        raise ScriptError(source, ("line 1: the file must hold a mapping with `steps:` or `threads:`",))
    try:
        return Script.model_validate(data)
    except ValidationError as problem:
        raise ScriptError(source, _describe(problem, node)) from None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _yaml_problem(problem: yaml.YAMLError) -> str:
    if not isinstance(problem, yaml.MarkedYAMLError) or problem.problem_mark is None:
        return str(problem)
    mark = problem.problem_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem.problem or problem}"


def _duplicate_keys(node: yaml.Node | None, path: str) -> list[str]:
    found: list[str] = []
    if isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            found += _duplicate_keys(child, f"{path}[{index}]")
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, child in node.value:
            here = f"{path}.{key.value}" if path else str(key.value)
            if key.value in seen:
                found.append(f"line {key.start_mark.line + 1}, {here}: the key is given twice")
            seen.add(key.value)
            found += _duplicate_keys(child, here)
    return found


def _describe(problem: ValidationError, node: yaml.Node | None) -> tuple[str, ...]:
    lines: list[str] = []
    errors = problem.errors(include_url=False, include_context=False)
    for error in errors[:MAX_PROBLEMS]:
        place = [part for part in error["loc"] if not (isinstance(part, str) and part.startswith(TAG_PREFIX))]
        place = _drop_union_members(place, node)
        line = _line(node, place)
        prefix = f"line {line}, " if line else ""
        lines.append(f"{prefix}{_dotted(place)}: {_reason(error['msg'], error['type'])}")
    if len(errors) > MAX_PROBLEMS:
        lines.append(f"… and {len(errors) - MAX_PROBLEMS} more")
    return tuple(dict.fromkeys(lines))


def _reason(message: str, kind: str) -> str:
    if kind == "extra_forbidden":
        return "there is no such key here"
    return message.removeprefix("Value error, ")


def _drop_union_members(place: Sequence[int | str], node: yaml.Node | None) -> list[int | str]:
    """Pydantic appends names of union members (`str`, `dict[str,any]`) that are no keys."""
    kept: list[int | str] = []
    for part in place:
        if isinstance(part, str) and ("[" in part or part in {"str", "bool", "int", "constrained-str"}):
            continue
        kept.append(part)
    return kept


def _dotted(place: Sequence[int | str]) -> str:
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else part)
    return text or "the script"


def _line(node: yaml.Node | None, place: Sequence[int | str]) -> int | None:
    """1-based line of the deepest part of the place that exists."""
    if node is None:
        return None
    here: yaml.Node = node
    line = here.start_mark.line
    for part in place:
        if isinstance(here, yaml.MappingNode):
            pair = next(((key, child) for key, child in here.value if key.value == part), None)
            if pair is None:
                break
            line, here = pair[0].start_mark.line, pair[1]
        elif isinstance(here, yaml.SequenceNode) and isinstance(part, int) and part < len(here.value):
            here = here.value[part]
            line = here.start_mark.line
        else:
            break
    return int(line) + 1
