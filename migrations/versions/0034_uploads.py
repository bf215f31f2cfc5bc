"""Files that are uploaded in parts."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0034"
down_revision = "0033"


def upgrade() -> None:
    moment, now = sa.DateTime(timezone=True), sa.text("clock_timestamp()")
    op.create_table(
        "uploads",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant_id", sa.String(40), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("mime_type", sa.String(255), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("received_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("part_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("file_lasts_seconds", sa.Integer()),
        sa.Column("file_id", sa.String(40)),
        sa.Column("completed_part_ids", JSONB()),
        sa.Column("created_at", moment, server_default=now, nullable=False),
        sa.Column("expires_at", moment, nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_uploads_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_uploads"),
    )
    op.create_index("ix_uploads_open", "uploads", ["tenant_id"], postgresql_where=sa.text("status = 'pending'"))
    op.create_index("ix_uploads_expires_at", "uploads", ["expires_at"])
    op.create_table(
        "upload_parts",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("upload_id", sa.String(40), nullable=False),
        sa.Column("tenant_id", sa.String(40), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("created_at", moment, server_default=now, nullable=False),
        sa.ForeignKeyConstraint(["upload_id"], ["uploads.id"], name="fk_upload_parts_upload_id_uploads", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_upload_parts_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_upload_parts"),
    )
    op.create_index("ix_upload_parts_upload_id", "upload_parts", ["upload_id"])


def downgrade() -> None:
    op.drop_table("upload_parts")
    op.drop_table("uploads")
