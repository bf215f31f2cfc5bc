"""Scores of texts that jobs generate at milestones of their training. A table of its own: services of the version before read
one evaluation of each job from text_evaluations."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    op.create_table(
        "milestone_evaluations",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("milestone", sa.Integer(), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("task_id", sa.String(length=40), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("prompts", sa.Integer(), nullable=False),
        sa.Column("scores", JSONB(), nullable=False),
        sa.Column("samples", JSONB(), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("notes", JSONB(), server_default="[]", nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_milestone_evaluations_job_id_jobs"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_milestone_evaluations_task_id_tasks"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_milestone_evaluations_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("job_id", "milestone", name="pk_milestone_evaluations"),
    )
    op.create_index("ix_milestone_evaluations_task_id", "milestone_evaluations", ["task_id"])


def downgrade() -> None:
    op.drop_table("milestone_evaluations")
