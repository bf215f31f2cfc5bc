"""What is known of a node's fitness: protocol, capabilities, what it acts upon, what it lost, whether it is quarantined."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0007"
down_revision = "0006"

_MOMENTS = ("applied_at", "behind_since", "proved_at", "rests_until", "quarantined_at")


def upgrade() -> None:
    op.add_column("nodes", sa.Column("protocol", sa.Integer(), server_default="1", nullable=False))
    op.add_column("nodes", sa.Column("capabilities", JSONB(), nullable=True))
    op.add_column("nodes", sa.Column("applied_version", sa.BigInteger(), nullable=True))
    op.add_column("nodes", sa.Column("losing", JSONB(), server_default=sa.text("'[]'"), nullable=False))
    for name in _MOMENTS:
        op.add_column("nodes", sa.Column(name, sa.DateTime(timezone=True), nullable=True))
    op.add_column("nodes", sa.Column("quarantine_reason", sa.Text(), nullable=True))
    op.add_column("tasks", sa.Column("faults", JSONB(), server_default=sa.text("'{}'"), nullable=False))
    op.add_column("tasks", sa.Column("retry_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("base_models", sa.Column("model_type", sa.String(64), nullable=True))


def downgrade() -> None:
    op.drop_column("base_models", "model_type")
    for name in ("retry_at", "faults"):
        op.drop_column("tasks", name)
    for name in ("quarantine_reason", *_MOMENTS, "losing", "applied_version", "capabilities", "protocol"):
        op.drop_column("nodes", name)
