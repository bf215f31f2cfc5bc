"""The bytes of preferences' prompts, which training reads before either answer. Earlier files have none: they are estimated as
if each prompt were read once."""

import sqlalchemy as sa
from alembic import op

revision = "0047"
down_revision = "0046"


def upgrade() -> None:
    op.add_column("files", sa.Column("prompt_bytes", sa.BigInteger()))


def downgrade() -> None:
    op.drop_column("files", "prompt_bytes")
