"""Adapters can be deleted, and say how many bytes they have: the stored-bytes quota sums them."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_SIZES = """
UPDATE adapters SET bytes = (
    SELECT coalesce(sum((file->>'bytes')::bigint), 0) FROM jsonb_array_elements(manifest->'files') AS file
)"""


def upgrade() -> None:
    op.add_column("adapters", sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("adapters", sa.Column("bytes", sa.BigInteger(), nullable=True))
    op.execute(_SIZES)
    op.alter_column("adapters", "bytes", nullable=False)


def downgrade() -> None:
    op.drop_column("adapters", "bytes")
    op.drop_column("adapters", "deleted_at")
