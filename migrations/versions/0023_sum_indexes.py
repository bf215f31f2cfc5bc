"""Indexes for what is summed or looked up over all of a tenant's rows: bytes of adapters, files that tasks name."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"

_FILES = {  # Postgres drops a condition that the column's NOT NULL implies, and would not know such an index again
    "train_file_id": "",
    "validation_file_id": " AND validation_file_id IS NOT NULL",
    "prompts_file_id": " AND prompts_file_id IS NOT NULL",
}
_INDEXES: tuple[tuple[str, str, list[str], dict[str, Any]], ...] = (
    (
        "ix_adapters_bytes",
        "adapters",
        ["tenant_id"],
        {"postgresql_include": ["bytes"], "postgresql_where": sa.text("deleted_at IS NULL")},
    ),
    *(
        (f"ix_tasks_tenant_{name}", "tasks", ["tenant_id", name], {"postgresql_where": sa.text(f"deleted_at IS NULL{more}")})
        for name, more in _FILES.items()
    ),
)


def upgrade() -> None:
    with op.get_context().autocommit_block():
        for name, table, columns, how in _INDEXES:
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")  # what an interrupted run left is not valid
            op.create_index(name, table, columns, postgresql_concurrently=True, **how)


def downgrade() -> None:
    for name, table, _, _ in _INDEXES:
        op.drop_index(name, table)
