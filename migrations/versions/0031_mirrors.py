"""Tracking servers, and what of each task they were sent."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    moment, now = sa.DateTime(timezone=True), sa.text("clock_timestamp()")
    op.create_table(
        "tracking_servers",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant_id", sa.String(40), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("credentials", sa.LargeBinary()),
        sa.Column("slow", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("created_at", moment, server_default=now, nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_tracking_servers_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_tracking_servers"),
        sa.UniqueConstraint("tenant_id", "name", name="uq_tracking_servers_tenant_id_name"),
    )
    op.create_table(
        "task_mirrors",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant_id", sa.String(40), nullable=False),
        sa.Column("task_id", sa.String(40), nullable=False),
        sa.Column("server_id", sa.String(40)),
        sa.Column("server", sa.String(64), nullable=False),
        sa.Column("experiment", sa.Text(), nullable=False),
        sa.Column("tags", JSONB(), nullable=False),
        sa.Column("state", sa.String(16), server_default="active", nullable=False),
        sa.Column("experiment_id", sa.String(64)),
        sa.Column("run_id", sa.String(64)),
        sa.Column("points", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("failing_since", moment),
        sa.Column("seen_version", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("claim", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("next_at", moment, server_default=now, nullable=False),
        sa.Column("held_until", moment),
        sa.Column("created_at", moment, server_default=now, nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_task_mirrors_tenant_id_tenants"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_task_mirrors_task_id_tasks"),
        sa.ForeignKeyConstraint(
            ["server_id"], ["tracking_servers.id"], name="fk_task_mirrors_server_id_tracking_servers", ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_task_mirrors"),
    )
    op.create_index("ix_task_mirrors_task_id", "task_mirrors", ["task_id"])
    op.create_index("ix_task_mirrors_server_id", "task_mirrors", ["server_id"])
    active, held = sa.text("state = 'active'"), sa.text("held_until IS NOT NULL")
    op.create_index("ix_task_mirrors_due", "task_mirrors", ["next_at"], postgresql_where=active)
    op.create_index("ix_task_mirrors_held", "task_mirrors", ["tenant_id"], postgresql_where=held)
    op.create_table(
        "mirrored_runs",
        sa.Column("mirror_id", sa.String(40), nullable=False),
        sa.Column("job_id", sa.String(40), nullable=False),
        sa.Column("tenant_id", sa.String(40), nullable=False),
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("through", sa.Integer(), server_default="-1", nullable=False),
        sa.Column("sent", JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("in_doubt", JSONB()),
        sa.Column("ended", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.ForeignKeyConstraint(
            ["mirror_id"], ["task_mirrors.id"], name="fk_mirrored_runs_mirror_id_task_mirrors", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_mirrored_runs_job_id_jobs"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_mirrored_runs_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("mirror_id", "job_id", name="pk_mirrored_runs"),
    )


def downgrade() -> None:
    op.drop_table("mirrored_runs")
    op.drop_table("task_mirrors")
    op.drop_table("tracking_servers")
