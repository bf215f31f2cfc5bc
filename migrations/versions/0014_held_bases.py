"""Which bases of the hub a node holds, and how fast it fetches them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.add_column("nodes", sa.Column("bases", JSONB()))
    op.add_column("nodes", sa.Column("base_rate", sa.Double()))


def downgrade() -> None:
    op.drop_column("nodes", "base_rate")
    op.drop_column("nodes", "bases")
