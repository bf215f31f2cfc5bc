"""The losses that an ended job was ranked by at its rungs. Earlier jobs have none: their curves stand in."""

import sqlalchemy as sa
from alembic import op

revision = "0046"
down_revision = "0045"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("rung_losses", sa.ARRAY(sa.Double())))


def downgrade() -> None:
    op.drop_column("jobs", "rung_losses")
