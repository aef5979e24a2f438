"""Tables. Every one starts its key with the tenant; times are integer milliseconds; structures are JSON text of wire shapes."""

from sqlalchemy import BigInteger, Boolean, Float, ForeignKeyConstraint, Index, Integer, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

_TENANT = String(63)
_ID = String(36)
MAX_REASON = 200
"""Characters of a task's reason: a code, not a text."""


class Base(DeclarativeBase):
    """Root of the tables."""


class TaskRow(Base):
    """A task: what was asked, and what became of it."""

    __tablename__ = "tasks"
    __table_args__ = (
        UniqueConstraint("tenant_id", "thread_id", name="uq_tasks_thread"),
        UniqueConstraint("tenant_id", "idempotency_key", name="uq_tasks_idempotency_key"),
        Index("ix_tasks_status", "tenant_id", "status", "id"),
        Index("ix_tasks_repository", "tenant_id", "repository", "id"),
        Index("ix_tasks_submitting", "submitted", "created_at"),
    )

    tenant_id: Mapped[str] = mapped_column(_TENANT, primary_key=True)
    id: Mapped[str] = mapped_column(_ID, primary_key=True)
    thread_id: Mapped[str] = mapped_column(_ID)
    turn_id: Mapped[str | None] = mapped_column(_ID)
    idempotency_key: Mapped[str | None] = mapped_column(String(200))
    submitted: Mapped[bool] = mapped_column(Boolean)
    """Whether the queue has it; False rows are swept."""
    status: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(String(MAX_REASON))
    title: Mapped[str] = mapped_column(Text)
    repository: Mapped[str] = mapped_column(Text)
    """See `repository_key`."""
    search: Mapped[str] = mapped_column(Text)
    """Case-folded title, instruction and repository."""
    spec: Mapped[str] = mapped_column(Text)
    created_at: Mapped[int] = mapped_column(BigInteger)
    started_at: Mapped[int | None] = mapped_column(BigInteger)
    completed_at: Mapped[int | None] = mapped_column(BigInteger)
    verified: Mapped[bool | None] = mapped_column(Boolean)
    verify: Mapped[str | None] = mapped_column(Text)
    patch: Mapped[str | None] = mapped_column(Text)
    usage: Mapped[str | None] = mapped_column(Text)
    cost_usd: Mapped[float | None] = mapped_column(Float)
    error: Mapped[str | None] = mapped_column(Text)
    final_message: Mapped[str | None] = mapped_column(Text)
    trace_id: Mapped[str | None] = mapped_column(String(32))


class ThreadRow(Base):
    """Summary of a thread, projected from its records."""

    __tablename__ = "threads"
    __table_args__ = (Index("ix_threads_task", "tenant_id", "task_id"),)

    tenant_id: Mapped[str] = mapped_column(_TENANT, primary_key=True)
    thread_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    task_id: Mapped[str | None] = mapped_column(_ID)
    model: Mapped[str | None] = mapped_column(Text)
    closed: Mapped[bool] = mapped_column(Boolean)
    last_turn_id: Mapped[str | None] = mapped_column(_ID)
    usage: Mapped[str | None] = mapped_column(Text)
    cost_usd: Mapped[float | None] = mapped_column(Float)
    created_at: Mapped[int] = mapped_column(BigInteger)
    last_activity_at: Mapped[int] = mapped_column(BigInteger)


class TurnRow(Base):
    """A turn, projected from its thread's records."""

    __tablename__ = "turns"
    __table_args__ = (
        ForeignKeyConstraint(
            ["tenant_id", "thread_id"], ["threads.tenant_id", "threads.thread_id"], name="fk_turns_thread", ondelete="CASCADE"
        ),
    )

    tenant_id: Mapped[str] = mapped_column(_TENANT, primary_key=True)
    thread_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    turn_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    model: Mapped[str] = mapped_column(Text)
    status: Mapped[str] = mapped_column(String(16))
    open_questions: Mapped[int] = mapped_column(Integer)
    """Questions to a person that nobody has answered."""
    started_at: Mapped[int] = mapped_column(BigInteger)
    completed_at: Mapped[int | None] = mapped_column(BigInteger)
    usage: Mapped[str | None] = mapped_column(Text)
    cost_usd: Mapped[float | None] = mapped_column(Float)
    model_requests: Mapped[int] = mapped_column(Integer)
    tool_calls: Mapped[int] = mapped_column(Integer)


class ProjectionRow(Base):
    """How far a thread's records were projected."""

    __tablename__ = "projections"

    tenant_id: Mapped[str] = mapped_column(_TENANT, primary_key=True)
    thread_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    applied_through: Mapped[int] = mapped_column(BigInteger)
    """Highest ordinal; -1: none."""


class ApprovalRow(Base):
    """Something that a person allowed for a repository: projected from its thread's records, except who took it back."""

    __tablename__ = "approvals"
    __table_args__ = (Index("ix_approvals_repository", "tenant_id", "repository", "id"),)

    tenant_id: Mapped[str] = mapped_column(_TENANT, primary_key=True)
    id: Mapped[str] = mapped_column(_ID, primary_key=True)
    """Follows from the record, so that projecting it again changes nothing."""
    repository: Mapped[str] = mapped_column(Text)
    """See `policy.approval_key`."""
    rule: Mapped[str] = mapped_column(Text)
    """ApprovalRule as JSON."""
    rule_sha256: Mapped[str] = mapped_column(String(64))
    thread_id: Mapped[str] = mapped_column(_ID)
    task_id: Mapped[str | None] = mapped_column(_ID)
    approved_by: Mapped[str | None] = mapped_column(Text)
    approved_at: Mapped[int] = mapped_column(BigInteger)
    revoked_by: Mapped[str | None] = mapped_column(Text)
    revoked_at: Mapped[int | None] = mapped_column(BigInteger)


class TokenRow(Base):
    """An API token: its hash only."""

    __tablename__ = "tokens"
    __table_args__ = (UniqueConstraint("sha256", name="uq_tokens_sha256"),)

    tenant_id: Mapped[str] = mapped_column(_TENANT, primary_key=True)
    id: Mapped[str] = mapped_column(_ID, primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64))
    name: Mapped[str] = mapped_column(Text)
    local: Mapped[bool] = mapped_column(Boolean)
    created_at: Mapped[int] = mapped_column(BigInteger)
    last_used_at: Mapped[int | None] = mapped_column(BigInteger)
    revoked_at: Mapped[int | None] = mapped_column(BigInteger)
