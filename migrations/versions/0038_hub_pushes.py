"""Adapters and merged models pushed to the hub."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0038"
down_revision = "0037"


def upgrade() -> None:
    moment, now = sa.DateTime(timezone=True), sa.text("clock_timestamp()")
    op.create_table(
        "hub_pushes",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant_id", sa.String(40), nullable=False),
        sa.Column("adapter_id", sa.String(40)),
        sa.Column("merged_model_id", sa.String(40)),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("repository", sa.String(200), nullable=False),
        sa.Column("revision", sa.String(255), nullable=False),
        sa.Column("private", sa.Boolean(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("files", JSONB(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sent_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("parent", sa.String(40)),
        sa.Column("committing", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("commit", sa.String(40)),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("sealed", sa.LargeBinary()),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("next_at", moment, server_default=now, nullable=False),
        sa.Column("claim", sa.String(32)),
        sa.Column("claimed_until", moment),
        sa.Column("error", JSONB()),
        sa.Column("created_at", moment, server_default=now, nullable=False),
        sa.Column("ended_at", moment),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_hub_pushes_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_hub_pushes"),
    )
    created, id = sa.text("created_at DESC"), sa.text("id DESC")
    op.create_index("ix_hub_pushes_tenant_id_created", "hub_pushes", ["tenant_id", created, id])
    op.create_index("ix_hub_pushes_open", "hub_pushes", ["next_at"], postgresql_where=sa.text("status = 'open'"))


def downgrade() -> None:
    op.drop_table("hub_pushes")
