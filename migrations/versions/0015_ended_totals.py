"""Counts of what ended, so that /metrics need not read every row."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"

_INDEXES = (
    ("ix_tasks_ended", "tasks", "ended_at", "ended_at IS NOT NULL"),
    ("ix_jobs_ended", "jobs", "ended_at", "ended_at IS NOT NULL"),
    ("ix_jobs_open", "jobs", "status", "ended_at IS NULL"),
)


def upgrade() -> None:
    with op.get_context().autocommit_block():
        for name, table, column, where in _INDEXES:
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")  # what an interrupted run left is not valid
            condition = sa.text(where)
            op.create_index(name, table, [column], postgresql_where=condition, postgresql_concurrently=True)
    op.create_table(
        "ended_totals",
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("name", sa.String(32), nullable=False),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False)
            for name in ("rows", "tokens", "evaluation_tokens", "steps", "forwards")
        ),
        sa.Column("gpu_seconds", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "name", name="pk_ended_totals"),
    )
    op.create_table(
        "ended_totals_through",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("moment", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_ended_totals_through"),
    )


def downgrade() -> None:
    for name, table, _, _ in _INDEXES:
        op.drop_index(name, table)
    op.drop_table("ended_totals_through")
    op.drop_table("ended_totals")
