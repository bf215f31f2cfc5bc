"""Specs as they were sent, the defaults of that moment beside them, and the version that took them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007_versions"
down_revision = "0006"


def upgrade() -> None:
    """Specs that are stored already hold their defaults themselves."""
    empty = sa.text("'{}'")
    op.add_column("tasks", sa.Column("spec_defaults", postgresql.JSONB(), server_default=empty, nullable=False))
    op.add_column("tasks", sa.Column("made_by", sa.String(32)))


def downgrade() -> None:
    op.drop_column("tasks", "made_by")
    op.drop_column("tasks", "spec_defaults")
