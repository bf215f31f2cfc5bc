"""A file of prompts that a task's evaluation names."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("prompts_file_id", sa.String(length=40), nullable=True))
    op.create_foreign_key(
        "fk_tasks_prompts_file_id_files", "tasks", "files", ["prompts_file_id"], ["id"], postgresql_not_valid=True
    )


def downgrade() -> None:
    op.drop_constraint("fk_tasks_prompts_file_id_files", "tasks")
    op.drop_column("tasks", "prompts_file_id")
