"""Tracking servers of Weights & Biases."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0039"
down_revision = "0038"


def upgrade() -> None:
    mlflow = sa.text("'mlflow'")
    op.add_column("tracking_servers", sa.Column("type", sa.String(16), server_default=mlflow, nullable=False))
    op.add_column("task_mirrors", sa.Column("type", sa.String(16), server_default=mlflow, nullable=False))
    op.add_column("task_mirrors", sa.Column("entity", sa.Text()))
    op.add_column("task_mirrors", sa.Column("options", JSONB(), server_default=sa.text("'{}'"), nullable=False))
    op.add_column("mirrored_runs", sa.Column("position", JSONB(), server_default=sa.text("'{}'"), nullable=False))


def downgrade() -> None:
    op.drop_column("mirrored_runs", "position")
    op.drop_column("task_mirrors", "options")
    op.drop_column("task_mirrors", "entity")
    op.drop_column("task_mirrors", "type")
    op.drop_column("tracking_servers", "type")
