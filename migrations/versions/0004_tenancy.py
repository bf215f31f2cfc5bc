"""Quotas of tenants, rates of keys, the audit log, seconds of shared steps, and the request that made a task."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.alter_column("tenants", "max_running_gpus", new_column_name="running_gpus_quota")
    op.add_column("tenants", sa.Column("queued_tasks_quota", sa.Integer(), server_default="1000"))
    op.add_column("tenants", sa.Column("stored_bytes_quota", sa.BigInteger()))
    op.add_column("tenants", sa.Column("month_tokens_quota", sa.BigInteger()))
    op.add_column("api_keys", sa.Column("requests_per_minute", sa.Integer()))
    op.add_column("placements", sa.Column("gpu_seconds", sa.Double(), server_default="0", nullable=False))
    op.execute("UPDATE placements SET gpu_seconds = train_seconds + evaluation_seconds")
    op.add_column("tasks", sa.Column("request_id", sa.String(64)))
    op.create_index("ix_point_chunks_hidden", "point_chunks", ["job_id"], postgresql_where=sa.text("hidden_by IS NOT NULL"))
    op.create_table(
        "audit_entries",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("tenant_id", sa.String(40), sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("key_id", sa.String(40), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("targets", ARRAY(sa.String(255)), nullable=False),
        sa.Column("request_id", sa.String(64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.clock_timestamp(), nullable=False),
    )
    op.create_index(
        "ix_audit_entries_tenant_id_created",
        "audit_entries",
        ["tenant_id", sa.text("created_at DESC"), sa.text("id DESC")],
    )


def downgrade() -> None:
    op.drop_table("audit_entries")
    op.drop_index("ix_point_chunks_hidden", "point_chunks")
    op.drop_column("tasks", "request_id")
    op.drop_column("placements", "gpu_seconds")
    op.drop_column("api_keys", "requests_per_minute")
    for quota in ("queued_tasks", "stored_bytes", "month_tokens"):
        op.drop_column("tenants", f"{quota}_quota")
    op.alter_column("tenants", "running_gpus_quota", new_column_name="max_running_gpus")
