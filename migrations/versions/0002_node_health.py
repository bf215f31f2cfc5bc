"""What placements and nodes wait for (room on a node's disk), and losses by device."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("placements", sa.Column("waits_for", sa.Text()))
    op.add_column("nodes", sa.Column("waits_for", sa.Text()))
    op.add_column("nodes", sa.Column("waits_since", sa.DateTime(timezone=True)))

    op.add_column("nodes", sa.Column("device_losses", JSONB(), server_default=sa.text("'{}'"), nullable=False))


def downgrade() -> None:
    op.drop_column("nodes", "device_losses")
    op.drop_column("nodes", "waits_since")
    op.drop_column("nodes", "waits_for")
    op.drop_column("placements", "waits_for")
