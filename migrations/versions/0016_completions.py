"""Completions: requests under way, the pieces of their answers, what was used."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    moment, now = sa.DateTime(timezone=True), sa.text("clock_timestamp()")
    op.create_table(
        "completion_requests",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant_id", sa.String(40), nullable=False),
        sa.Column("base_model", sa.String(128), nullable=False),
        sa.Column("base_revision", sa.String(64), nullable=False),
        sa.Column("precision", sa.String(16), nullable=False),
        sa.Column("adapter_id", sa.String(40)),
        sa.Column("job_id", sa.String(40)),
        sa.Column("dedicated", sa.Boolean(), nullable=False),
        sa.Column("work", JSONB(), nullable=False),
        sa.Column("reserved_tokens", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_at", moment, server_default=now, nullable=False),
        sa.Column("asker_until", moment, nullable=False),
        sa.Column("deadline", moment, nullable=False),
        sa.Column("executor", sa.String(64)),
        sa.Column("placement_id", sa.String(40)),
        sa.Column("claimed_until", moment),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("last_piece", sa.Integer(), server_default="0", nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("billed", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("ended_at", moment),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_completion_requests_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_completion_requests"),
    )
    waiting = sa.text("state = 'waiting'")
    op.create_index(
        "ix_completion_requests_waiting", "completion_requests", ["base_revision", "created_at"], postgresql_where=waiting
    )
    op.create_index("ix_completion_requests_tenant_id", "completion_requests", ["tenant_id", "created_at"])
    op.create_table(
        "completion_pieces",
        sa.Column("request_id", sa.String(40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("content", JSONB(), nullable=False),
        sa.ForeignKeyConstraint(
            ["request_id"],
            ["completion_requests.id"],
            name="fk_completion_pieces_request_id_completion_requests",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("request_id", "number", name="pk_completion_pieces"),
    )
    op.create_table(
        "completion_usage",
        sa.Column("tenant_id", sa.String(40), nullable=False),
        sa.Column("month", sa.Date(), nullable=False),
        sa.Column("base_model", sa.String(128), nullable=False),
        sa.Column("adapter_id", sa.String(40), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("gpu_seconds", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_completion_usage_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("tenant_id", "month", "base_model", "adapter_id", name="pk_completion_usage"),
    )


def downgrade() -> None:
    for table in ("completion_usage", "completion_pieces", "completion_requests"):
        op.drop_table(table)
