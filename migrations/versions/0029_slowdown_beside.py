"""The placements that a slowdown was measured beside: it says nothing of who stays once one of them has gone."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    op.add_column("placements", sa.Column("slowdown_beside", ARRAY(sa.Text())))


def downgrade() -> None:
    op.drop_column("placements", "slowdown_beside")
