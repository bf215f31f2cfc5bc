"""Bases whose files are in storage."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0040"
down_revision = "0039"


def upgrade() -> None:
    moment, now = sa.DateTime(timezone=True), sa.text("clock_timestamp()")
    op.create_table(
        "base_copies",
        sa.Column("base_model", sa.String(128), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("received_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("next_at", moment, server_default=now, nullable=False),
        sa.Column("claim", sa.String(32)),
        sa.Column("claimed_until", moment),
        sa.Column("error", JSONB()),
        sa.Column("created_at", moment, server_default=now, nullable=False),
        sa.Column("ended_at", moment),
        sa.ForeignKeyConstraint(
            ["base_model"], ["base_models.name"], name="fk_base_copies_base_model_base_models", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("base_model", name="pk_base_copies"),
    )


def downgrade() -> None:
    op.drop_table("base_copies")
