"""The REST API that clients were built against. A difference is a decision: regenerate, read the diff, write a line of CHANGELOG."""

import json
from pathlib import Path
from typing import Any

from api.app import create_app
from api.errors import status_of
from patchyard.protocol.errors import ErrorCode
from patchyard.settings import Settings

ROOT = Path(__file__).resolve().parents[3]

OPERATIONS = {
    "GET /healthz",
    "GET /readyz",
    "GET /v1/info",
    "GET /v1/doctor",
    "POST /v1/tasks",
    "GET /v1/tasks",
    "GET /v1/tasks/{task_id}",
    "POST /v1/tasks/{task_id}/cancel",
    "GET /v1/tasks/{task_id}/patch",
    "GET /v1/tasks/{task_id}/verify-log",
    "GET /v1/tasks/{task_id}/events",
    "GET /v1/tasks/{task_id}/rollout",
    "GET /v1/tasks/{task_id}/trace",
    "GET /v1/threads/{thread_id}",
    "POST /v1/threads/{thread_id}/ops",
    "GET /v1/threads/{thread_id}/events",
    "GET /v1/threads/{thread_id}/rollout",
    "GET /v1/approvals",
    "DELETE /v1/approvals/{approval_id}",
    "POST /v1/artefacts",
    "GET /v1/artefacts/{artefact_id}",
}


def description(home: Path) -> dict[str, Any]:
    app = create_app(Settings(home=home))
    return app.openapi()


def test_the_description_is_the_one_in_git(tmp_path: Path) -> None:
    kept = json.loads((ROOT / "api" / "openapi.json").read_text())
    found = description(tmp_path)
    assert found == kept, "the API changed: run `make generate`"


def test_every_operation_is_listed_and_all_but_health_want_a_token(tmp_path: Path) -> None:
    found = description(tmp_path)
    operations = {
        f"{method.upper()} {path}": operation
        for path, methods in found["paths"].items()
        for method, operation in methods.items()
    }
    assert set(operations) == OPERATIONS
    open_to_all = {name for name, operation in operations.items() if not operation.get("security")}
    assert open_to_all == {"GET /healthz", "GET /readyz"}
    assert all(operation["summary"] and operation["description"] for operation in operations.values())


def test_every_error_code_has_a_status() -> None:
    assert all(400 <= status_of(code) < 600 for code in ErrorCode)
    assert status_of(ErrorCode.QUEUE_FULL) == 429
