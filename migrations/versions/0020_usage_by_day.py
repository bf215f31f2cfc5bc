"""Usage by day and GPU type, a month's savings, and what GPUs cost."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"

_Column = tuple[str, sa.types.TypeEngine[Any]]
_TENANT = ("tenant_id", sa.String(40))
_TASK, _DAY, _TYPE = ("task_id", sa.String(40)), ("day", sa.Date()), ("device_type", sa.String(128))
_SUMS: tuple[_Column, ...] = (
    *((name, sa.BigInteger()) for name in ("tokens", "evaluation_tokens", "rewound_tokens")),
    ("gpu_seconds", sa.Double()),
)
_SAVED: tuple[_Column, ...] = (("saved_tokens", sa.BigInteger()), ("saved_gpu_seconds", sa.Double()))
_TABLES: tuple[tuple[str, tuple[_Column, ...], list[str]], ...] = (
    ("daily_usage", (_TASK, _DAY, _TYPE, _TENANT, *_SUMS), ["task_id", "day", "device_type"]),
    ("tenant_daily_usage", (_TENANT, _DAY, _TYPE, *_SUMS), ["tenant_id", "day", "device_type"]),
    ("monthly_savings", (_TENANT, ("month", sa.Date()), *_SAVED), ["tenant_id", "month"]),
    ("gpu_prices", (_TYPE, ("from_day", sa.Date()), ("per_hour", sa.Double())), ["device_type", "from_day"]),
)
_REFERRED = {"tenant_id": "tenants", "task_id": "tasks"}


def upgrade() -> None:
    with op.get_context().autocommit_block():
        listed: list[Any] = ["tenant_id", "month", sa.text("task_id DESC")]
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS ix_task_usage_listed")  # what an interrupted run left is not valid
        op.create_index("ix_task_usage_listed", "task_usage", listed, postgresql_concurrently=True)
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS ix_task_usage_tenant_id_month")
    for table, columns, key in _TABLES:
        op.create_table(
            table,
            *(sa.Column(name, kind, nullable=False) for name, kind in columns),
            *(
                sa.ForeignKeyConstraint([name], [f"{_REFERRED[name]}.id"], name=f"fk_{table}_{name}_{_REFERRED[name]}")
                for name, _ in columns
                if name in _REFERRED
            ),
            sa.PrimaryKeyConstraint(*key, name=f"pk_{table}"),
        )
    op.create_index("ix_daily_usage_tenant_id_day", "daily_usage", ["tenant_id", "day"])
    op.create_table(
        "usage_rolled_up_through",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("moment", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_usage_rolled_up_through"),
    )


def downgrade() -> None:
    op.create_index("ix_task_usage_tenant_id_month", "task_usage", ["tenant_id", "month"])
    op.drop_index("ix_task_usage_listed", "task_usage")
    for table in ("usage_rolled_up_through", *(name for name, _, _ in reversed(_TABLES))):
        op.drop_table(table)
