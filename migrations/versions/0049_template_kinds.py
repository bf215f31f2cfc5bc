"""What a base's chat template writes, and which row of a file is the first with tools. Of bases and files of versions before,
nobody has looked: their tasks are refused by the worker alone."""

import sqlalchemy as sa
from alembic import op

revision = "0049"
down_revision = "0048"


def upgrade() -> None:
    op.add_column("base_models", sa.Column("template_kind", sa.String(16)))
    op.add_column("files", sa.Column("tools_line", sa.Integer()))


def downgrade() -> None:
    op.drop_column("files", "tools_line")
    op.drop_column("base_models", "template_kind")
