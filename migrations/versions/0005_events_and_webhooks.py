"""What happens to a task, numbered; webhooks; answers under Idempotency-Keys; curves in few points; files that expire."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

revision = "0005"
down_revision = "0004"


def text(name: str, length: int | None = None, nullable: bool = False) -> sa.Column:
    return sa.Column(name, sa.Text() if length is None else sa.String(length), nullable=nullable)


def at(name: str, nullable: bool = True) -> sa.Column:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def now(name: str = "created_at") -> sa.Column:
    return sa.Column(name, sa.DateTime(timezone=True), server_default=sa.func.clock_timestamp(), nullable=False)


def key(name: str, to: str) -> sa.Column:
    return sa.Column(name, sa.String(40), sa.ForeignKey(to), primary_key=True)


def reference(name: str, to: str, index: bool = False, ondelete: str | None = None) -> sa.Column:
    return sa.Column(name, sa.String(40), sa.ForeignKey(to, ondelete=ondelete), nullable=False, index=index)


def upgrade() -> None:
    create_events()
    create_answers()
    create_summaries()
    create_webhooks()
    op.add_column("files", at("expires_at"))
    op.add_column("tasks", at("archived_at"))
    op.add_column("tasks", at("deleted_at"))


def downgrade() -> None:
    op.drop_column("files", "expires_at")
    for table in ("webhook_deliveries", "webhooks", "curve_summaries", "idempotency_keys", "task_events"):
        op.drop_table(table)
    for column in ("deleted_at", "archived_at", "told_status", "last_event"):
        op.drop_column("tasks", column)


def create_events() -> None:
    op.add_column("tasks", sa.Column("last_event", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("tasks", sa.Column("told_status", sa.String(16), server_default="", nullable=False))
    op.execute("UPDATE tasks SET told_status = status")  # events begin with what happens from now on
    for column in ("last_event", "told_status"):
        op.alter_column("tasks", column, server_default=None)
    op.create_table(
        "task_events",
        key("task_id", "tasks.id"),
        sa.Column("number", sa.BigInteger(), primary_key=True, autoincrement=False),
        reference("tenant_id", "tenants.id"),
        text("kind", 16),
        sa.Column("data", JSONB(), nullable=False),
        now(),
    )


def create_answers() -> None:
    op.create_table(
        "idempotency_keys",
        key("tenant_id", "tenants.id"),
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("fingerprint", sa.LargeBinary(), nullable=False),
        text("token", 40),
        now("claimed_at"),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("headers", JSONB(), nullable=True),
        sa.Column("body", JSONB(), nullable=True),
    )


def create_summaries() -> None:
    op.create_table(
        "curve_summaries",
        key("job_id", "jobs.id"),
        sa.Column("series", sa.String(16), primary_key=True),
        sa.Column("width", sa.Integer(), nullable=False),
        *(sa.Column(name, ARRAY(sa.Integer()), nullable=False) for name in ("buckets", "counts")),
        *(sa.Column(name, ARRAY(sa.Double()), nullable=False) for name in ("means", "mins", "maxs")),
    )


def create_webhooks() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(40), primary_key=True),
        reference("tenant_id", "tenants.id", index=True),
        text("url"),
        text("description", 128, nullable=True),
        sa.Column("events", ARRAY(sa.String(32)), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("secret_before", sa.LargeBinary(), nullable=True),
        at("secret_before_until"),
        text("disabled", 16, nullable=True),
        now(),
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.String(40), primary_key=True),
        reference("tenant_id", "tenants.id"),
        reference("webhook_id", "webhooks.id", ondelete="CASCADE"),
        text("type", 32),
        text("payload"),
        text("status", 16),
        sa.Column("attempts", sa.Integer(), nullable=False),
        at("next_at", nullable=False),
        sa.Column("last_status", sa.Integer(), nullable=True),
        text("last_error", nullable=True),
        now(),
        at("delivered_at"),
    )
    due = sa.text("status = 'pending'")
    op.create_index("ix_webhook_deliveries_due", "webhook_deliveries", ["next_at"], postgresql_where=due)
    newest: list[str | sa.TextClause] = ["webhook_id", sa.text("created_at DESC"), sa.text("id DESC")]
    op.create_index("ix_webhook_deliveries_webhook", "webhook_deliveries", newest)
