"""Jobs of a tpe search whose configuration is still to be proposed."""

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("proposed", sa.Boolean(), server_default=sa.true(), nullable=False))


def downgrade() -> None:
    op.drop_column("jobs", "proposed")
