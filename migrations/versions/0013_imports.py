"""Files that are fetched from a named source."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    moment, now = sa.DateTime(timezone=True), sa.text("clock_timestamp()")
    op.create_table(
        "file_imports",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant_id", sa.String(40), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("path", sa.Text()),
        sa.Column("revision", sa.String(255)),
        sa.Column("commit", sa.String(40)),
        sa.Column("license", sa.String(128)),
        sa.Column("gated", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("pins", JSONB(), nullable=False),
        sa.Column("sealed", sa.LargeBinary()),
        sa.Column("total_bytes", sa.BigInteger()),
        sa.Column("received_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("reserved_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("next_at", moment, server_default=now, nullable=False),
        sa.Column("claim", sa.String(32)),
        sa.Column("claimed_until", moment),
        sa.Column("error", JSONB()),
        sa.Column("created_at", moment, server_default=now, nullable=False),
        sa.Column("ended_at", moment),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_file_imports_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_file_imports"),
    )
    op.create_index("ix_file_imports_tenant_id", "file_imports", ["tenant_id"])
    op.create_index("ix_file_imports_open", "file_imports", ["next_at"], postgresql_where=sa.text("status = 'importing'"))


def downgrade() -> None:
    op.drop_table("file_imports")
