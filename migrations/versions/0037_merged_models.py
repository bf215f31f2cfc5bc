"""Merged models."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0037"
down_revision = "0036"


def upgrade() -> None:
    moment, now = sa.DateTime(timezone=True), sa.text("clock_timestamp()")
    op.create_table(
        "merged_models",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant_id", sa.String(40), nullable=False),
        sa.Column("adapter_id", sa.String(40), nullable=False),
        sa.Column("adapter_files", JSONB(), nullable=False),
        sa.Column("lineage", JSONB(), nullable=False),
        sa.Column("base_model", sa.String(128), nullable=False),
        sa.Column("base_revision", sa.String(64), nullable=False),
        sa.Column("max_shard_bytes", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("files", JSONB(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("node_id", sa.String(40)),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("lease_until", moment),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", moment, server_default=now, nullable=False),
        sa.Column("waits_for", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("created_at", moment, server_default=now, nullable=False),
        sa.Column("ended_at", moment),
        sa.Column("expires_at", moment),
        sa.Column("deleted_at", moment),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_merged_models_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_merged_models"),
    )
    created, id = sa.text("created_at DESC"), sa.text("id DESC")
    op.create_index("ix_merged_models_tenant_id_created", "merged_models", ["tenant_id", created, id])
    unended = sa.text("status IN ('queued', 'running')")
    op.create_index("ix_merged_models_open", "merged_models", ["next_at"], postgresql_where=unended)


def downgrade() -> None:
    op.drop_table("merged_models")
