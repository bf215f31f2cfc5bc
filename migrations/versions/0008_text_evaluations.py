"""Scores of generated texts."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "text_evaluations",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("task_id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40)),
        sa.Column("step", sa.Integer()),
        sa.Column("prompts", sa.Integer(), nullable=False),
        sa.Column("scores", JSONB(), nullable=False),
        sa.Column("prompt_scores", JSONB(), nullable=False),
        sa.Column("samples", JSONB(), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_text_evaluations_job_id_jobs"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_text_evaluations_task_id_tasks"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_text_evaluations_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_text_evaluations"),
    )
    op.create_index("ix_text_evaluations_task_id", "text_evaluations", ["task_id"])


def downgrade() -> None:
    op.drop_table("text_evaluations")
