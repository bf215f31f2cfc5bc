"""Bases by their name on the hub: commit, licence, gate and files; how far a placement's fetching is."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.add_column("base_models", sa.Column("commit", sa.String(40)))
    op.add_column("base_models", sa.Column("license", sa.String(128)))
    op.add_column("base_models", sa.Column("gated", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.create_table(
        "base_model_files",
        sa.Column("base_model", sa.String(128), nullable=False),
        sa.Column("path", sa.String(255), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["base_model"], ["base_models.name"], name="fk_base_model_files_base_model_base_models", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("base_model", "path", name="pk_base_model_files"),
    )
    op.add_column("placements", sa.Column("loading", sa.Text()))


def downgrade() -> None:
    op.drop_column("placements", "loading")
    op.drop_table("base_model_files")
    for name in ("gated", "license", "commit"):
        op.drop_column("base_models", name)
