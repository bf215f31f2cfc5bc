"""What last ended on a node, by an index: the autoscaling state asks every few seconds."""

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"

_TABLES = ("placements", "answer_sessions", "merged_models")


def upgrade() -> None:
    with op.get_context().autocommit_block():
        for table in _TABLES:
            name = f"ix_{table}_node_ended"
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")  # what an interrupted run left is not valid
            ended = sa.text("ended_at IS NOT NULL")
            op.create_index(name, table, ["node_id", "ended_at"], postgresql_concurrently=True, postgresql_where=ended)


def downgrade() -> None:
    for table in _TABLES:
        op.drop_index(f"ix_{table}_node_ended", table)
