"""An index of each webhook's pending messages in the order in which they are sent."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"

_NAME, _TABLE = "ix_webhook_deliveries_next", "webhook_deliveries"
_COLUMNS: list[Any] = ["webhook_id", sa.text("(attempts > 0)"), "next_at", "id"]


def upgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {_NAME}")  # what an interrupted run left is not valid
        pending = sa.text("status = 'pending'")
        op.create_index(_NAME, _TABLE, _COLUMNS, postgresql_concurrently=True, postgresql_where=pending)


def downgrade() -> None:
    op.drop_index(_NAME, _TABLE)
