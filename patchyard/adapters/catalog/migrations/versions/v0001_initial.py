"""Tasks, threads, turns, projections and tokens."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the first tables."""
    _tasks()
    _threads_and_turns()
    op.create_table(
        "projections",
        sa.Column("tenant_id", sa.String(63), nullable=False),
        sa.Column("thread_id", sa.String(36), nullable=False),
        sa.Column("applied_through", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "thread_id"),
    )
    op.create_table(
        "tokens",
        sa.Column("tenant_id", sa.String(63), nullable=False),
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("local", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("last_used_at", sa.BigInteger()),
        sa.Column("revoked_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("tenant_id", "id"),
        sa.UniqueConstraint("sha256", name="uq_tokens_sha256"),
    )


def _tasks() -> None:
    op.create_table(
        "tasks",
        sa.Column("tenant_id", sa.String(63), nullable=False),
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("thread_id", sa.String(36), nullable=False),
        sa.Column("turn_id", sa.String(36)),
        sa.Column("idempotency_key", sa.String(200)),
        sa.Column("submitted", sa.Boolean(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(200), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("repository", sa.Text(), nullable=False),
        sa.Column("search", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger()),
        sa.Column("completed_at", sa.BigInteger()),
        sa.Column("verified", sa.Boolean()),
        sa.Column("verify", sa.Text()),
        sa.Column("patch", sa.Text()),
        sa.Column("usage", sa.Text()),
        sa.Column("cost_usd", sa.Float()),
        sa.Column("error", sa.Text()),
        sa.Column("final_message", sa.Text()),
        sa.Column("trace_id", sa.String(32)),
        sa.PrimaryKeyConstraint("tenant_id", "id"),
        sa.UniqueConstraint("tenant_id", "thread_id", name="uq_tasks_thread"),
        sa.UniqueConstraint("tenant_id", "idempotency_key", name="uq_tasks_idempotency_key"),
    )
    op.create_index("ix_tasks_status", "tasks", ["tenant_id", "status", "id"])
    op.create_index("ix_tasks_repository", "tasks", ["tenant_id", "repository", "id"])
    op.create_index("ix_tasks_submitting", "tasks", ["submitted", "created_at"])


def _threads_and_turns() -> None:
    op.create_table(
        "threads",
        sa.Column("tenant_id", sa.String(63), nullable=False),
        sa.Column("thread_id", sa.String(36), nullable=False),
        sa.Column("task_id", sa.String(36)),
        sa.Column("model", sa.Text()),
        sa.Column("closed", sa.Boolean(), nullable=False),
        sa.Column("last_turn_id", sa.String(36)),
        sa.Column("usage", sa.Text()),
        sa.Column("cost_usd", sa.Float()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("last_activity_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "thread_id"),
    )
    op.create_index("ix_threads_task", "threads", ["tenant_id", "task_id"])
    op.create_table(
        "turns",
        sa.Column("tenant_id", sa.String(63), nullable=False),
        sa.Column("thread_id", sa.String(36), nullable=False),
        sa.Column("turn_id", sa.String(36), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("open_questions", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("completed_at", sa.BigInteger()),
        sa.Column("usage", sa.Text()),
        sa.Column("cost_usd", sa.Float()),
        sa.Column("model_requests", sa.Integer(), nullable=False),
        sa.Column("tool_calls", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "thread_id", "turn_id"),
        sa.ForeignKeyConstraint(
            ["tenant_id", "thread_id"], ["threads.tenant_id", "threads.thread_id"], name="fk_turns_thread", ondelete="CASCADE"
        ),
    )
