"""The first tables: tenants, files, tasks and what they lead to, the fleet, and plans."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

revision = "0001"
down_revision = None

LIVE = sa.text("ended_at IS NULL")
VISIBLE = sa.text("hidden_by IS NULL")
OPEN = sa.text("status IN ('validating', 'queued', 'running', 'paused')")

# in the order they are made; each refers only to those before it
TABLES = (
    "tenants",
    "api_keys",
    "files",
    "tasks",
    "jobs",
    "point_chunks",
    "adapters",
    "base_models",
    "nodes",
    "placements",
    "plan_requests",
    "planner_lease",
    "plans",
)


def upgrade() -> None:
    create_tenants()
    create_files()
    create_tasks()
    create_jobs()
    create_adapters()
    create_fleet()
    create_placements()
    create_plans()


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)


def text(name: str, length: int | None = None, nullable: bool = False) -> sa.Column:
    return sa.Column(name, sa.Text() if length is None else sa.String(length), nullable=nullable)


def identity(name: str = "id") -> sa.Column:
    return sa.Column(name, sa.String(40), primary_key=True)


def reference(name: str, to: str, nullable: bool = False, unique: bool = False, index: bool = False) -> sa.Column:
    return sa.Column(name, sa.String(40), sa.ForeignKey(to), nullable=nullable, unique=unique, index=index)


def whole(name: str, nullable: bool = False) -> sa.Column:
    return sa.Column(name, sa.Integer(), nullable=nullable)


def big(name: str, nullable: bool = False) -> sa.Column:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def number(name: str, nullable: bool = False) -> sa.Column:
    return sa.Column(name, sa.Double(), nullable=nullable)


def flag(name: str) -> sa.Column:
    return sa.Column(name, sa.Boolean(), nullable=False)


def json(name: str, nullable: bool = False) -> sa.Column:
    return sa.Column(name, JSONB(), nullable=nullable)


def now(name: str = "created_at") -> sa.Column:
    return sa.Column(name, sa.DateTime(timezone=True), server_default=sa.func.clock_timestamp(), nullable=False)


def at(name: str, nullable: bool = True) -> sa.Column:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def create_tenants() -> None:
    weight: sa.Column[float] = sa.Column("weight", sa.Double(), server_default="1", nullable=False)
    op.create_table(
        "tenants", identity(), text("name", 128), weight, now(), sa.UniqueConstraint("name", name="uq_tenants_name")
    )
    op.create_table(
        "api_keys",
        identity(),
        reference("tenant_id", "tenants.id", index=True),
        text("name", 128),
        sa.Column("hash", sa.LargeBinary(), nullable=False, unique=True),
        sa.Column("scopes", ARRAY(sa.String(16)), nullable=False),
        now(),
        at("expires_at"),
        at("revoked_at"),
    )


def create_files() -> None:
    op.create_table(
        "files",
        identity(),
        reference("tenant_id", "tenants.id", index=True),
        text("name", 255),
        text("format", 32),
        big("bytes"),
        whole("rows"),
        text("sha256", 64),
        now(),
        at("deleted_at"),
    )


def create_tasks() -> None:
    op.create_table(
        "tasks",
        identity(),
        reference("tenant_id", "tenants.id"),
        text("name", 128, nullable=True),
        json("spec"),
        text("status", 16),
        big("fence"),
        big("version"),
        text("error", nullable=True),
        text("base_model", 128),
        text("base_revision", 64),
        reference("train_file_id", "files.id"),
        reference("validation_file_id", "files.id", nullable=True),
        whole("gpus"),
        whole("priority"),
        json("labels"),
        text("winner_job_id", 40, nullable=True),
        number("base_val_loss", nullable=True),
        *(whole(f"{rows}_rows", nullable=True) for rows in ("train", "validation", "truncated", "skipped")),
        text("requeue_reason", 16, nullable=True),
        whole("losses"),
        json("waiting", nullable=True),
        now(),
        *(at(f"{moment}_at") for moment in ("queued", "started", "ended")),
    )
    op.create_index("ix_tasks_tenant_id_created", "tasks", ["tenant_id", sa.text("created_at DESC"), sa.text("id DESC")])
    op.create_index("ix_tasks_open", "tasks", ["status"], postgresql_where=OPEN)


def create_jobs() -> None:
    op.create_table(
        "jobs",
        identity(),
        reference("tenant_id", "tenants.id"),
        reference("task_id", "tasks.id"),
        whole("index"),
        json("config"),
        text("status", 16),
        whole("step"),
        whole("total_steps", nullable=True),
        whole("warmup_steps", nullable=True),
        number("warmup_val_loss", nullable=True),
        flag("promoted"),
        text("exit_reason", 16, nullable=True),
        json("exit_evidence", nullable=True),
        text("error", nullable=True),
        whole("best_step", nullable=True),
        number("best_val_loss", nullable=True),
        json("checkpoint", nullable=True),
        at("started_at"),
        at("ended_at"),
        sa.UniqueConstraint("task_id", "index", name="uq_jobs_task_id_index"),
    )
    op.create_table(
        "point_chunks",
        sa.Column("id", sa.BigInteger(), primary_key=True, autoincrement=True),
        reference("job_id", "jobs.id"),
        text("series", 16),
        whole("first_step"),
        whole("last_step"),
        sa.Column("steps", ARRAY(sa.Integer()), nullable=False),
        sa.Column("values", ARRAY(sa.Double()), nullable=False),
        big("hidden_by", nullable=True),
        sa.CheckConstraint("cardinality(steps) = cardinality(values)", name=op.f("ck_point_chunks_paired")),
    )
    visible = ["job_id", "series", "first_step"]
    op.create_index("uq_point_chunks_visible", "point_chunks", visible, unique=True, postgresql_where=VISIBLE)


def create_adapters() -> None:
    op.create_table(
        "adapters",
        identity(),
        reference("tenant_id", "tenants.id", index=True),
        reference("task_id", "tasks.id", index=True),
        reference("job_id", "jobs.id", unique=True),
        whole("step"),
        number("val_loss"),
        json("manifest"),
        now(),
    )


def create_fleet() -> None:
    op.create_table(
        "base_models",
        sa.Column("name", sa.String(128), primary_key=True),
        text("source"),
        text("revision", 64),
        text("architecture", 64),
        big("parameters"),
        whole("max_position"),
        flag("enabled"),
        now(),
    )
    op.create_table(
        "nodes",
        identity(),
        sa.Column("name", sa.String(63), nullable=False, unique=True),
        text("boot_id", 64),
        text("status", 16),
        json("devices"),
        json("versions"),
        sa.Column("credential_hash", sa.LargeBinary(), nullable=False),
        big("desired_version"),
        json("tokens_per_second"),
        now("joined_at"),
        now("heartbeat_at"),
    )


def create_placements() -> None:
    op.create_table(
        "placements",
        identity(),
        reference("task_id", "tasks.id", index=True),
        reference("node_id", "nodes.id", index=True),
        sa.Column("device_indexes", ARRAY(sa.Integer()), nullable=False),
        big("fence"),
        whole("last_seq"),
        now(),
        at("acknowledged_at"),
        at("heartbeat_at"),
        at("lease_until", nullable=False),
        number("expected_seconds", nullable=True),
        at("ended_at"),
        text("end_reason", 32, nullable=True),
        big("steps"),
        big("tokens"),
        number("train_seconds"),
        big("micro_batches"),
        big("forwards"),
        big("evaluation_tokens"),
        number("evaluation_seconds"),
    )
    op.create_index("uq_placements_live_task", "placements", ["task_id"], unique=True, postgresql_where=LIVE)
    op.create_index("ix_placements_live_node", "placements", ["node_id"], postgresql_where=LIVE)


def create_plans() -> None:
    op.create_table(
        "plan_requests",
        sa.Column("id", sa.BigInteger(), primary_key=True, autoincrement=True),
        text("reason", 64),
        now(),
    )
    op.create_table(
        "planner_lease", sa.Column("id", sa.Integer(), primary_key=True), text("token", 40), at("until", nullable=False)
    )
    op.create_table(
        "plans",
        identity(),
        now(),
        whole("requests"),
        text("method", 16),
        text("solver_status", 16, nullable=True),
        number("objective", nullable=True),
        number("bound", nullable=True),
        number("seconds"),
        json("problem"),
        json("decision"),
        text("note", nullable=True),
    )
