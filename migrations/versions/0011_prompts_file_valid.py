"""Every stored file of prompts exists: read apart from 0010, whose lock keeps others from writing tasks."""

from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.execute("ALTER TABLE tasks VALIDATE CONSTRAINT fk_tasks_prompts_file_id_files")


def downgrade() -> None:
    pass
