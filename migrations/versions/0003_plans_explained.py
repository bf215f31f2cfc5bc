"""What plans change for each task, when running tasks are expected to end, and what was learned about speeds and lives."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0003"
down_revision = "0002"

MOMENTS = ("expected_end", "expected_low", "expected_high")
PROMISED = sa.text("promised_to IS NOT NULL")
LIVED = ("warm_exits", "warm_lived", "late_exits", "late_lived")


def upgrade() -> None:
    op.add_column("tenants", sa.Column("max_running_gpus", sa.Integer()))
    op.add_column("placements", sa.Column("promised_to", sa.String(40)))
    op.add_column("placements", sa.Column("waited_seconds", sa.Double()))
    for name in MOMENTS:
        op.add_column("placements", sa.Column(name, sa.DateTime(timezone=True)))
    op.create_index("ix_placements_ended", "placements", ["ended_at"])
    op.create_index("ix_placements_promised", "placements", ["promised_to"], postgresql_where=PROMISED)
    op.add_column("plans", sa.Column("latency_seconds", sa.Double()))
    op.create_table(
        "plan_changes",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("tenant_id", sa.String(40), sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("task_id", sa.String(40), sa.ForeignKey("tasks.id"), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("said", JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.clock_timestamp(), nullable=False),
    )
    op.create_index("ix_plan_changes_task", "plan_changes", ["task_id", "created_at", "id"])
    op.create_table(
        "throughput_profiles",
        sa.Column("base_model", sa.String(128), primary_key=True),
        sa.Column("precision", sa.String(16), primary_key=True),
        sa.Column("device_type", sa.String(128), primary_key=True),
        sa.Column("tokens", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("rows", sa.Integer(), primary_key=True, autoincrement=False),
        *(sa.Column(name, sa.Double(), nullable=False) for name in ("mean_tokens", "log_seconds", "variance")),
        sa.Column("measured", sa.Integer(), nullable=False),
    )
    op.create_table(
        "survivals",
        sa.Column("shape_class", sa.String(255), primary_key=True),
        *(sa.Column(name, sa.Double(), nullable=False) for name in LIVED),
    )


def downgrade() -> None:
    for table in ("survivals", "throughput_profiles", "plan_changes"):
        op.drop_table(table)
    op.drop_column("plans", "latency_seconds")
    op.drop_index("ix_placements_promised", "placements")
    op.drop_index("ix_placements_ended", "placements")
    for name in (*MOMENTS, "waited_seconds", "promised_to"):
        op.drop_column("placements", name)
    op.drop_column("tenants", "max_running_gpus")
