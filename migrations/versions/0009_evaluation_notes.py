"""Notes on the scores of generated texts: what was left out, and what counts as 0."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("text_evaluations", sa.Column("notes", JSONB(), server_default="[]", nullable=False))


def downgrade() -> None:
    op.drop_column("text_evaluations", "notes")
