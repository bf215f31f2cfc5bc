"""When a node was removed from the list."""

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"


def upgrade() -> None:
    op.add_column("nodes", sa.Column("removed_at", sa.DateTime(timezone=True)))


def downgrade() -> None:
    op.drop_column("nodes", "removed_at")
