"""JSON Schemas of everything that others depend on, generated from the models. Frozen as files in `schemas/`."""

from typing import Any

from pydantic import TypeAdapter

from .approvals import ApprovalView
from .events import Event
from .ops import Submission, SubmissionReceipt
from .rollout_lines import RolloutLine
from .tasks import TaskCreateRequest, TaskView

_ROOTS: dict[str, Any] = {
    "submission": Submission,
    "submission_receipt": SubmissionReceipt,
    "event": Event,
    "rollout_line": RolloutLine,
    "task_create_request": TaskCreateRequest,
    "task_view": TaskView,
    "approval_view": ApprovalView,
}


def schemas() -> dict[str, dict[str, Any]]:
    """Name -> JSON Schema (draft 2020-12), as values are written."""
    made = {}
    for name, root in _ROOTS.items():
        schema = TypeAdapter(root).json_schema(mode="serialization")
        for definition in (schema, *schema.get("$defs", {}).values()):
            _require_discriminator(definition)
        made[name] = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name, **schema}
    return made


def _require_discriminator(definition: dict[str, Any]) -> None:
    """The `type` of a union member has a default in Python, but is always on the wire."""
    if "const" in definition.get("properties", {}).get("type", {}):
        definition["required"] = sorted({*definition.get("required", ()), "type"})
