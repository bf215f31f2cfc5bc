"""Since when a node's worker stops, as it said itself."""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"


def upgrade() -> None:
    op.add_column("nodes", sa.Column("stopping_since", sa.DateTime(timezone=True)))


def downgrade() -> None:
    op.drop_column("nodes", "stopping_since")
