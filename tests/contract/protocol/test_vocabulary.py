"""The vocabulary is complete against Codex's, closed, and frozen as schema files."""

import json
import re
import typing
from pathlib import Path

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from patchyard.protocol import events, ops
from patchyard.protocol.rollout_lines import RolloutLine
from patchyard.protocol.schema import schemas

ROOT = Path(__file__).resolve().parents[3]
DOC = (ROOT / "docs/protocol.md").read_text()


def _members(union: object) -> list[type[BaseModel]]:
    return list(typing.get_args(typing.get_args(union)[0]))


def _wire_names(union: object) -> set[str]:
    return {member.model_fields["type"].default for member in _members(union)}


def _ours(title: str) -> set[str]:
    """Names that a section calls ours only."""
    body = DOC.split(f"## {title}")[1].split("\n## ")[0]
    return set(re.findall(r"[a-z]+(?:_[a-z]+)+|error|warning", body.split("Ours only:")[1]))


def _table(title: str) -> list[list[str]]:
    body = DOC.split(f"## {title}")[1].split("\n## ")[0]
    rows = [line.strip("| \n").split("|") for line in body.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_every_codex_op_is_here_or_left_out_with_a_reason() -> None:
    rows = _table("Ops (29)")
    assert len({row[0] for row in rows}) == 29
    theirs = {row[1] for row in rows if row[1] != "–"}
    assert theirs <= _wire_names(ops.Op)
    assert _wire_names(ops.Op) - theirs <= _ours("Ops (29)")
    assert [row for row in rows if row[1] == "–" and not row[2]] == []


def test_every_codex_event_is_here_or_left_out_with_a_reason() -> None:
    rows = _table("EventMsg (83)")
    assert len({row[0] for row in rows}) == 83
    assert [row for row in rows if row[1] == "–" and not row[2]] == []
    named = set(re.findall(r"[a-z]+(?:_[a-z]+)+|error|warning", " ".join(row[1] for row in rows))) | _ours("EventMsg (83)")
    assert _wire_names(events.DurableMsg) | _wire_names(events.LiveMsg) <= named


def test_schemas_are_frozen() -> None:
    for name, schema in schemas().items():
        frozen = json.loads((ROOT / f"patchyard/protocol/schemas/{name}.json").read_text())
        assert frozen == json.loads(json.dumps(schema)), f"{name}: a wire shape changed; if that is meant, run `make generate`"


@pytest.mark.parametrize("union", [ops.Op, events.DurableMsg, events.LiveMsg])
def test_unknown_members_and_fields_are_refused(union: object) -> None:
    adapter: TypeAdapter[object] = TypeAdapter(union)
    with pytest.raises(ValidationError):
        adapter.validate_python({"type": "no_such_member"})
    with pytest.raises(ValidationError, match="no_such_field"):
        adapter.validate_python({"type": min(_wire_names(union)), "no_such_field": 1})


def test_an_item_of_an_unknown_kind_survives_the_rollout_unchanged() -> None:
    line = {
        "type": "response_item",
        "timestamp": 1,
        "ordinal": 0,
        "payload": {"type": "web_search_call", "action": {"query": "x"}},
    }
    parsed = TypeAdapter(RolloutLine).validate_python(line)
    assert json.loads(parsed.model_dump_json(exclude_none=True)) == line
