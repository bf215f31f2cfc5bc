"""How many of a task's validation rows are also trained on. Of tasks that earlier workers read, nobody has counted."""

import sqlalchemy as sa
from alembic import op

revision = "0048"
down_revision = "0047"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("overlap_rows", sa.Integer()))


def downgrade() -> None:
    op.drop_column("tasks", "overlap_rows")
