"""Speeds are learned by width: how many devices the placement had in which a step was timed."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

TABLE, KEY = "throughput_profiles", ["base_model", "precision", "device_type", "tokens", "rows"]


def upgrade() -> None:
    """What was measured so far counts as measured on one device, which most of it was."""
    op.add_column(TABLE, sa.Column("width", sa.Integer(), server_default="1", nullable=False))
    op.alter_column(TABLE, "width", server_default=None)
    _key([*KEY, "width"])


def downgrade() -> None:
    op.execute(f"DELETE FROM {TABLE} WHERE width > 1")
    _key(KEY)
    op.drop_column(TABLE, "width")


def _key(columns: list[str]) -> None:
    op.drop_constraint(f"pk_{TABLE}", TABLE, type_="primary")
    op.create_primary_key(f"pk_{TABLE}", TABLE, columns)
