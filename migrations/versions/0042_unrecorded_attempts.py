"""Attempts of couriers that ended without an outcome, counted as they begin."""

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0041"

_TABLES = ("webhook_deliveries", "graded_texts", "task_mirrors")


def upgrade() -> None:
    for table in _TABLES:
        op.add_column(table, sa.Column("unrecorded", sa.Integer(), server_default="0", nullable=False))


def downgrade() -> None:
    for table in _TABLES:
        op.drop_column(table, "unrecorded")
