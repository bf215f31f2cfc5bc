"""Webhooks that are told by Slack's format or by e-mail."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    op.add_column("webhooks", sa.Column("format", sa.String(16), server_default="standard", nullable=False))


def downgrade() -> None:
    op.drop_column("webhooks", "format")
