"""The trace that a task belongs to."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("traceparent", sa.String(64)))


def downgrade() -> None:
    op.drop_column("tasks", "traceparent")
