"""Tasks may leave a node in order: paused, preempted, or because the node is drained."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("desired_status", sa.String(16)))
    op.add_column("tasks", sa.Column("requeue_detail", sa.Text()))
    op.add_column("placements", sa.Column("leaving", sa.String(16)))
    op.add_column("placements", sa.Column("leave_detail", sa.Text()))
    op.add_column("nodes", sa.Column("drained_at", sa.DateTime(timezone=True)))


def downgrade() -> None:
    op.drop_column("nodes", "drained_at")
    op.drop_column("placements", "leave_detail")
    op.drop_column("placements", "leaving")
    op.drop_column("tasks", "requeue_detail")
    op.drop_column("tasks", "desired_status")
