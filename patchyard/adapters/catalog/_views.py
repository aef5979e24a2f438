"""Rows to wire shapes, and back."""

from typing import Any

from patchyard.protocol.errors import ErrorInfo
from patchyard.protocol.model_items import TokenUsage
from patchyard.protocol.tasks import (
    ArchiveSource,
    GitSource,
    NoSource,
    PatchSummary,
    RepositorySource,
    TaskSpec,
    TaskStatus,
    TaskView,
    TurnStatus,
    VerifyResult,
)

from .database.tables import TaskRow, ThreadRow, TokenRow, TurnRow
from .records import ThreadSummary, TokenRecord, TurnSummary

SUBMITTING = "submitting"
"""Reason of a task that the queue may not have yet."""
_SEARCHED = 20_000
"""Characters of a task that search looks at."""


def clean(text: str) -> str:
    """Text that PostgreSQL takes: it has no NUL."""
    return text.replace("\0", "\ufffd")


def repository_key(source: RepositorySource) -> str:
    """The name under which lists find a repository: its URL without `.git` and trailing slashes."""
    match source:
        case GitSource():
            return clean(source.url).rstrip("/").removesuffix(".git")
        case ArchiveSource():
            return f"archive:{clean(source.artefact_id)}"
        case NoSource():
            return ""


def search_text(title: str, spec: TaskSpec) -> str:
    """What a text query is matched against."""
    return clean(f"{title}\n{repository_key(spec.repository)}\n{spec.instruction}"[:_SEARCHED]).casefold()


def task_values(view: TaskView, idempotency_key: str | None) -> dict[str, Any]:
    """Columns of a task that is about to be submitted."""
    return {
        "tenant_id": view.tenant_id,
        "id": view.id,
        "thread_id": view.thread_id,
        "turn_id": view.turn_id,
        "idempotency_key": clean(idempotency_key) if idempotency_key is not None else None,
        "submitted": False,
        "status": TaskStatus.QUEUED.value,
        "reason": SUBMITTING,
        "title": clean(view.title),
        "repository": repository_key(view.spec.repository),
        "search": search_text(view.title, view.spec),
        "spec": view.spec.model_dump_json(),
        "created_at": view.created_at,
        "trace_id": view.trace_id,
    }


def task_view(row: TaskRow) -> TaskView:
    """The task as the API shows it."""
    return TaskView(
        id=row.id,
        tenant_id=row.tenant_id,
        thread_id=row.thread_id,
        turn_id=row.turn_id,
        status=TaskStatus(row.status),
        reason=row.reason,
        title=row.title,
        spec=TaskSpec.model_validate_json(row.spec),
        created_at=row.created_at,
        started_at=row.started_at,
        completed_at=row.completed_at,
        verified=row.verified,
        verify=VerifyResult.model_validate_json(row.verify) if row.verify is not None else None,
        patch=PatchSummary.model_validate_json(row.patch) if row.patch is not None else None,
        usage=usage_of(row.usage),
        cost_usd=row.cost_usd,
        error=ErrorInfo.model_validate_json(row.error) if row.error is not None else None,
        final_message=row.final_message,
        trace_id=row.trace_id,
    )


def usage_of(stored: str | None) -> TokenUsage | None:
    """Usage from its column."""
    return TokenUsage.model_validate_json(stored) if stored is not None else None


def thread_summary(row: ThreadRow, turns: int, last: TurnRow | None) -> ThreadSummary:
    """A thread with what its turns say."""
    return ThreadSummary(
        tenant_id=row.tenant_id,
        thread_id=row.thread_id,
        task_id=row.task_id,
        model=row.model,
        closed=row.closed,
        turns=turns,
        last_turn_id=row.last_turn_id,
        last_turn_status=TurnStatus(last.status) if last is not None else None,
        usage=usage_of(row.usage),
        cost_usd=row.cost_usd,
        created_at=row.created_at,
        last_activity_at=row.last_activity_at,
    )


def turn_summary(row: TurnRow) -> TurnSummary:
    """A turn."""
    return TurnSummary(
        turn_id=row.turn_id,
        kind=row.kind,
        model=row.model,
        status=TurnStatus(row.status),
        started_at=row.started_at,
        completed_at=row.completed_at,
        usage=usage_of(row.usage),
        cost_usd=row.cost_usd,
        model_requests=row.model_requests,
        tool_calls=row.tool_calls,
    )


def token_record(row: TokenRow) -> TokenRecord:
    """A token without its hash."""
    return TokenRecord(
        id=row.id,
        tenant_id=row.tenant_id,
        name=row.name,
        local=row.local,
        created_at=row.created_at,
        last_used_at=row.last_used_at,
        revoked_at=row.revoked_at,
    )
