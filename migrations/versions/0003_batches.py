"""Batches: tasks that are posted together, and planned for one objective."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "batches",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=128)),
        sa.Column("objective", sa.String(length=32), nullable=False),
        sa.Column("deadline", sa.DateTime(timezone=True)),
        sa.Column("labels", JSONB(), nullable=False),
        sa.Column("task_ids", ARRAY(sa.String(length=40)), nullable=False),
        sa.Column("plan", JSONB()),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_batches_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_batches"),
    )
    newest_first = [sa.text("created_at DESC"), sa.text("id DESC")]
    op.create_index("ix_batches_tenant_id_created", "batches", ["tenant_id", *newest_first])
    op.add_column("tasks", sa.Column("batch_id", sa.String(length=40)))


def downgrade() -> None:
    op.drop_column("tasks", "batch_id")
    op.drop_table("batches")
