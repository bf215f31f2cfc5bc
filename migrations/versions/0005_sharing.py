"""Sharing of executors: bounds of slowdowns, and what was measured."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("tenants", sa.Column("max_slowdown", sa.Double(), nullable=True))
    op.add_column("placements", sa.Column("beside", sa.Integer(), server_default="0", nullable=False))
    op.add_column("placements", sa.Column("max_slowdown", sa.Double(), nullable=True))
    op.add_column("placements", sa.Column("slowdown", sa.Double(), nullable=True))
    op.add_column("placements", sa.Column("correction", sa.Double(), nullable=True))


def downgrade() -> None:
    for column in ("correction", "slowdown", "max_slowdown", "beside"):
        op.drop_column("placements", column)
    op.drop_column("tenants", "max_slowdown")
