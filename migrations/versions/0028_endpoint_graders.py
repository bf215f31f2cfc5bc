"""Endpoint graders of tasks, and the texts that wait for their scores."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    moment, now = sa.DateTime(timezone=True), sa.text("clock_timestamp()")
    op.create_table(
        "endpoint_graders",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant_id", sa.String(40), nullable=False),
        sa.Column("task_id", sa.String(40), nullable=False),
        sa.Column("metric", sa.String(40), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("headers", sa.LargeBinary()),
        sa.Column("rate_limit", sa.Integer()),
        sa.Column("next_call_at", moment),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_endpoint_graders_tenant_id_tenants"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_endpoint_graders_task_id_tasks"),
        sa.PrimaryKeyConstraint("id", name="pk_endpoint_graders"),
        sa.UniqueConstraint("task_id", "metric", name="uq_endpoint_graders_task_id_metric"),
    )
    op.create_table(
        "text_gradings",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant_id", sa.String(40), nullable=False),
        sa.Column("task_id", sa.String(40), nullable=False),
        sa.Column("grader_id", sa.String(40), nullable=False),
        sa.Column("job_id", sa.String(40)),
        sa.Column("milestone", sa.Integer()),
        sa.Column("give_up_at", moment, nullable=False),
        sa.Column("created_at", moment, server_default=now, nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_text_gradings_tenant_id_tenants"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_text_gradings_task_id_tasks"),
        sa.ForeignKeyConstraint(
            ["grader_id"], ["endpoint_graders.id"], name="fk_text_gradings_grader_id_endpoint_graders", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_text_gradings_job_id_jobs"),
        sa.PrimaryKeyConstraint("id", name="pk_text_gradings"),
    )
    op.create_index("ix_text_gradings_task_id", "text_gradings", ["task_id"])
    op.create_index("ix_text_gradings_grader_id", "text_gradings", ["grader_id"])
    op.create_table(
        "graded_texts",
        sa.Column("grading_id", sa.String(40), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("tenant_id", sa.String(40), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("reference", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("finish_reason", sa.String(16), nullable=False),
        sa.Column("done", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("score", sa.Double()),
        sa.Column("error", sa.Text()),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("next_at", moment, server_default=now, nullable=False),
        sa.Column("held_until", moment),
        sa.ForeignKeyConstraint(
            ["grading_id"], ["text_gradings.id"], name="fk_graded_texts_grading_id_text_gradings", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_graded_texts_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("grading_id", "place", name="pk_graded_texts"),
    )
    waiting, held = sa.text("NOT done"), sa.text("held_until IS NOT NULL")
    op.create_index("ix_graded_texts_due", "graded_texts", ["grading_id", "next_at", "place"], postgresql_where=waiting)
    op.create_index("ix_graded_texts_held", "graded_texts", ["tenant_id"], postgresql_where=held)


def downgrade() -> None:
    op.drop_table("graded_texts")
    op.drop_table("text_gradings")
    op.drop_table("endpoint_graders")
