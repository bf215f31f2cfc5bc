"""Texts for graders by the grader and the time at which they are sent next, and a mark on gradings that have ended."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"

_INDEXES: dict[str, tuple[str, list[str], Any]] = {
    "ix_graded_texts_next": ("graded_texts", ["grader_id", "next_at", "grading_id", "place"], sa.text("NOT done")),
    "ix_text_gradings_ended": ("text_gradings", ["id"], sa.text("ended")),
    "ix_text_gradings_give_up_at": ("text_gradings", ["give_up_at"], None),
}
_FILL = """UPDATE graded_texts t SET grader_id = g.grader_id FROM text_gradings g WHERE g.id = t.grading_id
    AND (t.grading_id, t.place) IN (SELECT grading_id, place FROM graded_texts WHERE grader_id IS NULL LIMIT 1000)"""


def upgrade() -> None:
    # an interrupted run may have added them
    op.execute("ALTER TABLE graded_texts ADD COLUMN IF NOT EXISTS grader_id VARCHAR(40)")
    op.execute("ALTER TABLE text_gradings ADD COLUMN IF NOT EXISTS ended BOOLEAN DEFAULT false NOT NULL")
    with op.get_context().autocommit_block():
        for name, (table, columns, where) in _INDEXES.items():
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")  # what an interrupted run left is not valid
            op.create_index(name, table, columns, postgresql_concurrently=True, postgresql_where=where)
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS ix_graded_texts_due")
        while op.get_bind().execute(sa.text(_FILL)).rowcount:
            pass


def downgrade() -> None:
    for name, (table, _, _) in _INDEXES.items():
        op.drop_index(name, table)
    op.create_index(
        "ix_graded_texts_due", "graded_texts", ["grading_id", "next_at", "place"], postgresql_where=sa.text("NOT done")
    )
    op.drop_column("graded_texts", "grader_id")
    op.drop_column("text_gradings", "ended")
