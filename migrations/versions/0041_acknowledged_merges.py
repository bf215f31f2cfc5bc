"""When a merge's node took it up."""

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0040"


def upgrade() -> None:
    op.add_column("merged_models", sa.Column("acknowledged_at", sa.DateTime(timezone=True)))


def downgrade() -> None:
    op.drop_column("merged_models", "acknowledged_at")
