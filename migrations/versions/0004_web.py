"""Browser sessions and sign-in links."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

TABLES = ("browser_sessions", "sign_in_links")


def upgrade() -> None:
    for table in TABLES:
        op.create_table(
            table,
            sa.Column("hash", sa.LargeBinary(), nullable=False),
            sa.Column("tenant_id", sa.String(length=40), nullable=False),
            sa.Column("key_id", sa.String(length=40), nullable=False),
            sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
            sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
            sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=f"fk_{table}_key_id_api_keys"),
            sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=f"fk_{table}_tenant_id_tenants"),
            sa.PrimaryKeyConstraint("hash", name=f"pk_{table}"),
        )
        op.create_index(f"ix_{table}_expires_at", table, ["expires_at"])


def downgrade() -> None:
    for table in TABLES:
        op.drop_table(table)
