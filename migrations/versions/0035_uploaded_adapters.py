"""Adapters that tenants upload: of no task and no job, with a name."""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"

_NAME, _TABLE = "ix_adapters_uploaded", "adapters"
_OF_TASK = ("task_id", "job_id", "step", "val_loss")


def upgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {_NAME}")  # what an interrupted run left is not valid
        uploaded = sa.text("task_id IS NULL")
        op.create_index(_NAME, _TABLE, ["deleted_at"], postgresql_concurrently=True, postgresql_where=uploaded)
    for column in _OF_TASK:
        op.alter_column(_TABLE, column, nullable=True)
    op.add_column(_TABLE, sa.Column("name", sa.String(128)))


def downgrade() -> None:
    op.drop_index(_NAME, _TABLE)
    op.execute(f"DELETE FROM {_TABLE} WHERE task_id IS NULL")
    op.drop_column(_TABLE, "name")
    for column in _OF_TASK:
        op.alter_column(_TABLE, column, nullable=False)
