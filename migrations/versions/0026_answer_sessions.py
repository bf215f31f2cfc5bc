"""Answer sessions: bases that are held on devices to answer completions alone; why a request gets none."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    moment, now = sa.DateTime(timezone=True), sa.text("clock_timestamp()")
    op.create_table(
        "answer_sessions",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("node_id", sa.String(40), nullable=False),
        sa.Column("device_index", sa.Integer(), nullable=False),
        sa.Column("base_model", sa.String(128), nullable=False),
        sa.Column("base_revision", sa.String(64), nullable=False),
        sa.Column("precision", sa.String(16), nullable=False),
        sa.Column("tenant_id", sa.String(40), nullable=False),
        sa.Column("dedicated", sa.Boolean(), nullable=False),
        sa.Column("fence", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("created_at", moment, server_default=now, nullable=False),
        sa.Column("acknowledged_at", moment),
        sa.Column("lease_until", moment, nullable=False),
        sa.Column("used_at", moment, nullable=False),
        sa.Column("ended_at", moment),
        sa.Column("end_reason", sa.Text()),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name="fk_answer_sessions_node_id_nodes"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_answer_sessions_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_answer_sessions"),
    )
    live = sa.text("ended_at IS NULL")
    op.create_index(
        "uq_answer_sessions_live", "answer_sessions", ["node_id", "device_index"], unique=True, postgresql_where=live
    )
    op.create_index("ix_answer_sessions_tenant_id", "answer_sessions", ["tenant_id"])
    op.create_table(
        "ended_answer_sessions",
        sa.Column("base_model", sa.String(128), nullable=False),
        sa.Column("gpu_seconds", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("base_model", name="pk_ended_answer_sessions"),
    )
    op.add_column("completion_requests", sa.Column("refusal", JSONB(none_as_null=True)))


def downgrade() -> None:
    op.drop_column("completion_requests", "refusal")
    op.drop_table("ended_answer_sessions")
    op.drop_table("answer_sessions")
