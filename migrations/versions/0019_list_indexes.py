"""Indexes in the order of lists, so that a page of them costs the same whatever the tenant's history."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"

_NEWEST: list[Any] = ["tenant_id", sa.text("created_at DESC"), sa.text("id DESC")]
_LISTED = {
    "postgresql_include": ["status", "base_model", "name", "archived_at"],
    "postgresql_where": sa.text("deleted_at IS NULL"),
}
_LABELLED = {
    "postgresql_using": "gin",
    "postgresql_ops": {"labels": "jsonb_path_ops"},
    "postgresql_where": sa.text("labels <> '{}'::jsonb"),
}
_INDEXES: tuple[tuple[str, str, list[Any], dict[str, Any]], ...] = (
    ("ix_files_tenant_id_created", "files", _NEWEST, {}),
    ("ix_adapters_tenant_id_created", "adapters", _NEWEST, {}),
    ("ix_tasks_listed", "tasks", _NEWEST, _LISTED),
    ("ix_tasks_labels", "tasks", ["labels"], _LABELLED),
    ("ix_tasks_train_file_id", "tasks", ["train_file_id"], {}),
    *(
        (f"ix_tasks_{name}", "tasks", [name], {"postgresql_where": sa.text(f"{name} IS NOT NULL")})
        for name in ("validation_file_id", "prompts_file_id")
    ),
)
_BEFORE = (  # each is the beginning of one of those above
    ("ix_files_tenant_id", "files", ["tenant_id"]),
    ("ix_adapters_tenant_id", "adapters", ["tenant_id"]),
    ("ix_tasks_tenant_id_created", "tasks", _NEWEST),
)


def upgrade() -> None:
    with op.get_context().autocommit_block():
        for name, table, columns, how in _INDEXES:
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")  # what an interrupted run left is not valid
            op.create_index(name, table, columns, postgresql_concurrently=True, **how)
        for name, _, _ in _BEFORE:
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")


def downgrade() -> None:
    for name, table, columns in _BEFORE:
        op.create_index(name, table, columns)
    for name, table, _, _ in _INDEXES:
        op.drop_index(name, table)
