"""The GPU type of a placement as it was placed: a node may register anew with other devices. Earlier rows have none, and count
as of their node's type."""

import sqlalchemy as sa
from alembic import op

revision = "0045"
down_revision = "0044"


def upgrade() -> None:
    op.add_column("placements", sa.Column("device_type", sa.Text()))


def downgrade() -> None:
    op.drop_column("placements", "device_type")
