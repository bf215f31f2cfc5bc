"""Of each job its score by a text metric where its warmup ends, and of each prompt there: jobs are ranked by them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("warmup_score", sa.Double()))
    op.add_column("milestone_evaluations", sa.Column("prompt_scores", JSONB()))


def downgrade() -> None:
    op.drop_column("milestone_evaluations", "prompt_scores")
    op.drop_column("jobs", "warmup_score")
