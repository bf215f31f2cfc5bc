"""What was used becomes numbers; the queue is one row for each tenant; what was swept stays counted."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_REWOUND = (
    ("rewound_tokens", sa.BigInteger()),
    ("rewound_evaluation_tokens", sa.BigInteger()),
    ("rewound_gpu_seconds", sa.Float()),
)
_DONE = (("tokens", sa.BigInteger()), ("evaluation_tokens", sa.BigInteger()), ("gpu_seconds", sa.Double()))


def upgrade() -> None:
    for name in ("kept_rows", "rewound_rows"):
        op.add_column("tasks", sa.Column(name, sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("tasks", sa.Column("emptied_at", sa.DateTime(timezone=True)))
    empty = sa.text("deleted_at IS NOT NULL AND emptied_at IS NULL")
    op.create_index("ix_tasks_deleted", "tasks", ["deleted_at"], postgresql_where=empty)
    for name, kind in _REWOUND:
        op.add_column("placements", sa.Column(name, kind, server_default="0", nullable=False))
    _tables()
    _count_what_there_is()


def _tables() -> None:
    op.create_table(
        "queue_status",
        sa.Column("tenant_id", sa.String(), sa.ForeignKey("tenants.id"), primary_key=True),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("untold", sa.Integer(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
    )
    op.create_table(
        "task_usage",
        sa.Column("task_id", sa.String(), sa.ForeignKey("tasks.id"), primary_key=True),
        sa.Column("month", sa.Date(), primary_key=True),
        sa.Column("tenant_id", sa.String(), sa.ForeignKey("tenants.id"), nullable=False),
        *(sa.Column(name, kind, nullable=False) for name, kind in _DONE),
        *(sa.Column(name, sa.Double() if name.endswith("seconds") else kind, nullable=False) for name, kind in _REWOUND),
    )
    op.create_index("ix_task_usage_tenant_id_month", "task_usage", ["tenant_id", "month"])
    op.create_table(
        "tenant_usage",
        sa.Column("tenant_id", sa.String(), sa.ForeignKey("tenants.id"), primary_key=True),
        sa.Column("month", sa.Date(), primary_key=True),
        sa.Column("shard", sa.SmallInteger(), primary_key=True, autoincrement=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "swept_placements",
        sa.Column("end_reason", sa.String(32), primary_key=True),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False)
            for name in ("placements", "tokens", "evaluation_tokens", "steps", "forwards")
        ),
        sa.Column("gpu_seconds", sa.Float(), nullable=False),
    )


def _count_what_there_is() -> None:
    """Usage as it was derived until now: of what a task's placements did, hidden rows over all its rows were not billed."""
    op.execute(
        """UPDATE tasks SET rewound_rows = hidden.rows FROM (
        SELECT j.task_id, sum(cardinality(c.steps) * CAST(j.config->>'batch_size' AS bigint)) AS rows
        FROM point_chunks c JOIN jobs j ON j.id = c.job_id
        WHERE c.hidden_by IS NOT NULL AND c.series = 'train_loss' GROUP BY j.task_id) AS hidden
        WHERE hidden.task_id = tasks.id"""
    )
    op.execute(
        """UPDATE tasks SET kept_rows = seen.rows FROM (
        SELECT j.task_id, sum((j.step / e.steps) * t.train_rows
            + least((j.step % e.steps) * e.batch, t.train_rows)) AS rows
        FROM jobs j JOIN tasks t ON t.id = j.task_id CROSS JOIN LATERAL (
            SELECT CAST(j.config->>'batch_size' AS bigint) AS batch,
                (t.train_rows + CAST(j.config->>'batch_size' AS bigint) - 1) / CAST(j.config->>'batch_size' AS bigint) AS steps
        ) AS e WHERE t.train_rows > 0 GROUP BY j.task_id) AS seen
        WHERE seen.task_id = tasks.id"""
    )
    op.execute(
        """UPDATE placements p SET rewound_tokens = round(p.tokens * lost.part),
            rewound_evaluation_tokens = round(p.evaluation_tokens * lost.part), rewound_gpu_seconds = p.gpu_seconds * lost.part
        FROM (SELECT id, rewound_rows / CAST(kept_rows + rewound_rows AS double precision) AS part
            FROM tasks WHERE rewound_rows > 0) AS lost
        WHERE lost.id = p.task_id"""
    )
    op.execute("UPDATE tasks SET kept_rows = 0 WHERE status = 'running'")  # what it may yet lose begins nobody knows where
    op.execute(
        """INSERT INTO task_usage SELECT p.task_id, CAST(date_trunc('month', p.created_at AT TIME ZONE 'UTC') AS date),
            t.tenant_id, sum(p.tokens), sum(p.evaluation_tokens), sum(p.gpu_seconds * cardinality(p.device_indexes)),
            sum(p.rewound_tokens), sum(p.rewound_evaluation_tokens),
            sum(p.rewound_gpu_seconds * cardinality(p.device_indexes))
        FROM placements p JOIN tasks t ON t.id = p.task_id GROUP BY 1, 2, 3"""
    )
    op.execute(
        """INSERT INTO tenant_usage SELECT tenant_id, month, 0, sum(tokens - rewound_tokens)
        FROM task_usage GROUP BY tenant_id, month"""
    )


def downgrade() -> None:
    for table in ("swept_placements", "tenant_usage", "task_usage", "queue_status"):
        op.drop_table(table)
    for name, _ in _REWOUND:
        op.drop_column("placements", name)
    op.drop_index("ix_tasks_deleted", "tasks")
    for name in ("kept_rows", "rewound_rows", "emptied_at"):
        op.drop_column("tasks", name)
