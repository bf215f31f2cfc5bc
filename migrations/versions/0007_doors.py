"""Join tokens: of one node each, stored as hashes."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

TABLE = "join_tokens"


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        TABLE,
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("node_name", sa.String(63), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", moment, server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.Column("expires_at", moment, nullable=False),
        sa.Column("used_at", moment, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_join_tokens")),
        sa.UniqueConstraint("hash", "node_name", name=op.f("uq_join_tokens_hash_node_name")),
    )


def downgrade() -> None:
    op.drop_table(TABLE)
