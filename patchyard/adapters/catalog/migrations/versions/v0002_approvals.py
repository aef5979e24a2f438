"""Approvals of repositories."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create their table."""
    op.create_table(
        "approvals",
        sa.Column("tenant_id", sa.String(63), nullable=False),
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("repository", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("rule_sha256", sa.String(64), nullable=False),
        sa.Column("thread_id", sa.String(36), nullable=False),
        sa.Column("task_id", sa.String(36)),
        sa.Column("approved_by", sa.Text()),
        sa.Column("approved_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_by", sa.Text()),
        sa.Column("revoked_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("tenant_id", "id"),
    )
    op.create_index("ix_approvals_repository", "approvals", ["tenant_id", "repository", "id"])
