"""Of each job the scores that it was ranked by at its warmup boundary, so that a cut after a restart is the cut without one."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.execute("ALTER TABLE jobs ADD COLUMN IF NOT EXISTS boundary_scores JSONB")  # an interrupted run may have added it
    with op.get_context().autocommit_block():
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS ix_jobs_scored")  # what an interrupted run left is not valid
        condition = sa.text("boundary_scores IS NOT NULL")
        op.create_index("ix_jobs_scored", "jobs", ["task_id"], postgresql_where=condition, postgresql_concurrently=True)


def downgrade() -> None:
    op.drop_index("ix_jobs_scored", "jobs")
    op.drop_column("jobs", "boundary_scores")
