"""Scores on each validation row, of the base and of adapters, and how a task's winner was chosen."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("base_scores", JSONB()))
    op.add_column("tasks", sa.Column("selection", JSONB()))
    op.add_column("tasks", sa.Column("trend_rows", sa.Integer()))
    op.add_column("adapters", sa.Column("scores", JSONB()))


def downgrade() -> None:
    op.drop_column("adapters", "scores")
    op.drop_column("tasks", "trend_rows")
    op.drop_column("tasks", "selection")
    op.drop_column("tasks", "base_scores")
