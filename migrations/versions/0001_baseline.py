"""The baseline: every table of version 0.2.0, the first that was released. The history before it was folded into this file."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

revision = "0001"
down_revision = None

# in the order in which they can be dropped: each before those that it refers to
TABLES = (
    "point_chunks",
    "curve_summaries",
    "adapters",
    "task_usage",
    "task_events",
    "plan_changes",
    "placements",
    "jobs",
    "webhook_deliveries",
    "tasks",
    "webhooks",
    "tenant_usage",
    "queue_status",
    "idempotency_keys",
    "files",
    "audit_entries",
    "api_keys",
    "throughput_profiles",
    "tenants",
    "swept_placements",
    "survivals",
    "plans",
    "planner_lease",
    "plan_requests",
    "nodes",
    "join_tokens",
    "base_models",
)


def stamped(name: str) -> sa.Column:
    """A moment that the database writes when the row is made."""
    return sa.Column(name, sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False)


def upgrade() -> None:
    op.create_table(
        "base_models",
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("revision", sa.String(length=64), nullable=False),
        sa.Column("architecture", sa.String(length=64), nullable=False),
        sa.Column("model_type", sa.String(length=64)),
        sa.Column("parameters", sa.BigInteger(), nullable=False),
        sa.Column("max_position", sa.Integer(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        stamped("created_at"),
        sa.PrimaryKeyConstraint("name", name="pk_base_models"),
    )
    op.create_table(
        "join_tokens",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("node_name", sa.String(length=63), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        stamped("created_at"),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name="pk_join_tokens"),
        sa.UniqueConstraint("hash", "node_name", name="uq_join_tokens_hash_node_name"),
    )
    op.create_table(
        "nodes",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("boot_id", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("devices", JSONB(), nullable=False),
        sa.Column("versions", JSONB(), nullable=False),
        sa.Column("credential_hash", sa.LargeBinary(), nullable=False),
        sa.Column("desired_version", sa.BigInteger(), nullable=False),
        sa.Column("tokens_per_second", JSONB(), nullable=False),
        stamped("joined_at"),
        stamped("heartbeat_at"),
        sa.Column("drained_at", sa.DateTime(timezone=True)),
        sa.Column("protocol", sa.Integer(), server_default="1", nullable=False),
        sa.Column("capabilities", JSONB()),
        sa.Column("applied_version", sa.BigInteger()),
        sa.Column("applied_at", sa.DateTime(timezone=True)),
        sa.Column("behind_since", sa.DateTime(timezone=True)),
        sa.Column("losing", JSONB(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("proved_at", sa.DateTime(timezone=True)),
        sa.Column("rests_until", sa.DateTime(timezone=True)),
        sa.Column("quarantined_at", sa.DateTime(timezone=True)),
        sa.Column("quarantine_reason", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_nodes"),
        sa.UniqueConstraint("name", name="uq_nodes_name"),
    )
    op.create_table(
        "plan_requests",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=False),
        stamped("created_at"),
        sa.PrimaryKeyConstraint("id", name="pk_plan_requests"),
    )
    op.create_table(
        "planner_lease",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("token", sa.String(length=40), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_planner_lease"),
    )
    op.create_table(
        "plans",
        sa.Column("id", sa.String(length=40), nullable=False),
        stamped("created_at"),
        sa.Column("requests", sa.Integer(), nullable=False),
        sa.Column("method", sa.String(length=16), nullable=False),
        sa.Column("solver_status", sa.String(length=16)),
        sa.Column("objective", sa.Double()),
        sa.Column("bound", sa.Double()),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("latency_seconds", sa.Double()),
        sa.Column("problem", JSONB(), nullable=False),
        sa.Column("decision", JSONB(), nullable=False),
        sa.Column("note", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_plans"),
    )
    op.create_table(
        "survivals",
        sa.Column("shape_class", sa.String(length=255), nullable=False),
        sa.Column("warm_exits", sa.Double(), nullable=False),
        sa.Column("warm_lived", sa.Double(), nullable=False),
        sa.Column("late_exits", sa.Double(), nullable=False),
        sa.Column("late_lived", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("shape_class", name="pk_survivals"),
    )
    op.create_table(
        "swept_placements",
        sa.Column("end_reason", sa.String(length=32), nullable=False),
        sa.Column("placements", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("evaluation_tokens", sa.BigInteger(), nullable=False),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("forwards", sa.BigInteger(), nullable=False),
        sa.Column("gpu_seconds", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("end_reason", name="pk_swept_placements"),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("weight", sa.Double(), server_default="1", nullable=False),
        stamped("created_at"),
        sa.Column("running_gpus_quota", sa.Integer()),
        sa.Column("queued_tasks_quota", sa.Integer(), server_default="1000"),
        sa.Column("stored_bytes_quota", sa.BigInteger()),
        sa.Column("month_tokens_quota", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_tenants"),
        sa.UniqueConstraint("name", name="uq_tenants_name"),
    )
    op.create_table(
        "throughput_profiles",
        sa.Column("base_model", sa.String(length=128), nullable=False),
        sa.Column("precision", sa.String(length=16), nullable=False),
        sa.Column("device_type", sa.String(length=128), nullable=False),
        sa.Column("tokens", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("rows", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("width", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("mean_tokens", sa.Double(), nullable=False),
        sa.Column("log_seconds", sa.Double(), nullable=False),
        sa.Column("variance", sa.Double(), nullable=False),
        sa.Column("measured", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint(
            "base_model", "precision", "device_type", "tokens", "rows", "width", name="pk_throughput_profiles"
        ),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("scopes", ARRAY(sa.String(length=16)), nullable=False),
        stamped("created_at"),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.Column("revoked_at", sa.DateTime(timezone=True)),
        sa.Column("requests_per_minute", sa.Integer()),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_api_keys_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.UniqueConstraint("hash", name="uq_api_keys_hash"),
    )
    op.create_index("ix_api_keys_tenant_id", "api_keys", ["tenant_id"])
    op.create_table(
        "audit_entries",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("key_id", sa.String(length=40), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("targets", ARRAY(sa.String(length=255)), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        stamped("created_at"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_audit_entries_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_audit_entries"),
    )
    op.create_index(
        "ix_audit_entries_tenant_id_created",
        "audit_entries",
        ["tenant_id", sa.literal_column("created_at DESC"), sa.literal_column("id DESC")],
    )
    op.create_table(
        "files",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("format", sa.String(length=32), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        stamped("created_at"),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.Column("deleted_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_files_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_files"),
    )
    op.create_index("ix_files_tenant_id", "files", ["tenant_id"])
    op.create_table(
        "idempotency_keys",
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("fingerprint", sa.LargeBinary(), nullable=False),
        sa.Column("token", sa.String(length=40), nullable=False),
        stamped("claimed_at"),
        sa.Column("status", sa.Integer()),
        sa.Column("headers", JSONB()),
        sa.Column("body", JSONB()),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_idempotency_keys_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("tenant_id", "key", name="pk_idempotency_keys"),
    )
    op.create_table(
        "queue_status",
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("untold", sa.Integer(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_queue_status_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_queue_status"),
    )
    op.create_table(
        "tenant_usage",
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("month", sa.Date(), nullable=False),
        sa.Column("shard", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_tenant_usage_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("tenant_id", "month", "shard", name="pk_tenant_usage"),
    )
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("description", sa.String(length=128)),
        sa.Column("events", ARRAY(sa.String(length=32)), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("secret_before", sa.LargeBinary()),
        sa.Column("secret_before_until", sa.DateTime(timezone=True)),
        sa.Column("disabled", sa.String(length=16)),
        stamped("created_at"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_webhooks_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_webhooks"),
    )
    op.create_index("ix_webhooks_tenant_id", "webhooks", ["tenant_id"])
    op.create_table(
        "tasks",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=128)),
        sa.Column("spec", JSONB(), nullable=False),
        sa.Column("spec_defaults", JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("made_by", sa.String(length=32)),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("last_event", sa.BigInteger(), nullable=False),
        sa.Column("told_status", sa.String(length=16), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("base_model", sa.String(length=128), nullable=False),
        sa.Column("base_revision", sa.String(length=64), nullable=False),
        sa.Column("train_file_id", sa.String(length=40), nullable=False),
        sa.Column("validation_file_id", sa.String(length=40)),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("labels", JSONB(), nullable=False),
        sa.Column("winner_job_id", sa.String(length=40)),
        sa.Column("base_val_loss", sa.Double()),
        sa.Column("train_rows", sa.Integer()),
        sa.Column("validation_rows", sa.Integer()),
        sa.Column("truncated_rows", sa.Integer()),
        sa.Column("skipped_rows", sa.Integer()),
        sa.Column("desired_status", sa.String(length=16)),
        sa.Column("requeue_reason", sa.String(length=16)),
        sa.Column("requeue_detail", sa.Text()),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("faults", JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("retry_at", sa.DateTime(timezone=True)),
        sa.Column("kept_rows", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("rewound_rows", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("request_id", sa.String(length=64)),
        sa.Column("waiting", JSONB()),
        stamped("created_at"),
        sa.Column("queued_at", sa.DateTime(timezone=True)),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("archived_at", sa.DateTime(timezone=True)),
        sa.Column("deleted_at", sa.DateTime(timezone=True)),
        sa.Column("emptied_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_tasks_tenant_id_tenants"),
        sa.ForeignKeyConstraint(["train_file_id"], ["files.id"], name="fk_tasks_train_file_id_files"),
        sa.ForeignKeyConstraint(["validation_file_id"], ["files.id"], name="fk_tasks_validation_file_id_files"),
        sa.PrimaryKeyConstraint("id", name="pk_tasks"),
    )
    op.create_index(
        "ix_tasks_deleted", "tasks", ["deleted_at"], postgresql_where=sa.text("deleted_at IS NOT NULL AND emptied_at IS NULL")
    )
    op.create_index(
        "ix_tasks_open",
        "tasks",
        ["status"],
        postgresql_where=sa.text("status IN ('validating', 'queued', 'running', 'paused')"),
    )
    op.create_index(
        "ix_tasks_tenant_id_created", "tasks", ["tenant_id", sa.literal_column("created_at DESC"), sa.literal_column("id DESC")]
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("webhook_id", sa.String(length=40), nullable=False),
        sa.Column("type", sa.String(length=32), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_status", sa.Integer()),
        sa.Column("last_error", sa.Text()),
        stamped("created_at"),
        sa.Column("delivered_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_webhook_deliveries_tenant_id_tenants"),
        sa.ForeignKeyConstraint(
            ["webhook_id"], ["webhooks.id"], name="fk_webhook_deliveries_webhook_id_webhooks", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_deliveries"),
    )
    op.create_index(
        "ix_webhook_deliveries_due", "webhook_deliveries", ["next_at"], postgresql_where=sa.text("status = 'pending'")
    )
    op.create_index(
        "ix_webhook_deliveries_webhook",
        "webhook_deliveries",
        ["webhook_id", sa.literal_column("created_at DESC"), sa.literal_column("id DESC")],
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("task_id", sa.String(length=40), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("config", JSONB(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("total_steps", sa.Integer()),
        sa.Column("warmup_steps", sa.Integer()),
        sa.Column("warmup_val_loss", sa.Double()),
        sa.Column("promoted", sa.Boolean(), nullable=False),
        sa.Column("exit_reason", sa.String(length=16)),
        sa.Column("exit_evidence", JSONB()),
        sa.Column("error", sa.Text()),
        sa.Column("best_step", sa.Integer()),
        sa.Column("best_val_loss", sa.Double()),
        sa.Column("checkpoint", JSONB()),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_jobs_task_id_tasks"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_jobs_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("task_id", "index", name="uq_jobs_task_id_index"),
    )
    op.create_table(
        "placements",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("task_id", sa.String(length=40), nullable=False),
        sa.Column("node_id", sa.String(length=40), nullable=False),
        sa.Column("device_indexes", ARRAY(sa.Integer()), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("last_seq", sa.Integer(), nullable=False),
        stamped("created_at"),
        sa.Column("acknowledged_at", sa.DateTime(timezone=True)),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True)),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expected_seconds", sa.Double()),
        sa.Column("leaving", sa.String(length=16)),
        sa.Column("leave_detail", sa.Text()),
        sa.Column("promised_to", sa.String(length=40)),
        sa.Column("waited_seconds", sa.Double()),
        sa.Column("expected_end", sa.DateTime(timezone=True)),
        sa.Column("expected_low", sa.DateTime(timezone=True)),
        sa.Column("expected_high", sa.DateTime(timezone=True)),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("end_reason", sa.String(length=32)),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("train_seconds", sa.Double(), nullable=False),
        sa.Column("micro_batches", sa.BigInteger(), nullable=False),
        sa.Column("forwards", sa.BigInteger(), nullable=False),
        sa.Column("evaluation_tokens", sa.BigInteger(), nullable=False),
        sa.Column("evaluation_seconds", sa.Double(), nullable=False),
        sa.Column("gpu_seconds", sa.Double(), server_default="0", nullable=False),
        sa.Column("rewound_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("rewound_evaluation_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("rewound_gpu_seconds", sa.Double(), server_default="0", nullable=False),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name="fk_placements_node_id_nodes"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_placements_task_id_tasks"),
        sa.PrimaryKeyConstraint("id", name="pk_placements"),
    )
    op.create_index("ix_placements_ended", "placements", ["ended_at"])
    op.create_index("ix_placements_live_node", "placements", ["node_id"], postgresql_where=sa.text("ended_at IS NULL"))
    op.create_index("ix_placements_node_id", "placements", ["node_id"])
    op.create_index(
        "ix_placements_promised", "placements", ["promised_to"], postgresql_where=sa.text("promised_to IS NOT NULL")
    )
    op.create_index("ix_placements_task_id", "placements", ["task_id"])
    op.create_index(
        "uq_placements_live_task", "placements", ["task_id"], unique=True, postgresql_where=sa.text("ended_at IS NULL")
    )
    op.create_table(
        "plan_changes",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("task_id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("said", JSONB(), nullable=False),
        stamped("created_at"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_plan_changes_task_id_tasks"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_plan_changes_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_plan_changes"),
    )
    op.create_index("ix_plan_changes_task", "plan_changes", ["task_id", "created_at", "id"])
    op.create_table(
        "task_events",
        sa.Column("task_id", sa.String(length=40), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("data", JSONB(), nullable=False),
        stamped("created_at"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_task_events_task_id_tasks"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_task_events_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("task_id", "number", name="pk_task_events"),
    )
    op.create_table(
        "task_usage",
        sa.Column("task_id", sa.String(length=40), nullable=False),
        sa.Column("month", sa.Date(), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("evaluation_tokens", sa.BigInteger(), nullable=False),
        sa.Column("gpu_seconds", sa.Double(), nullable=False),
        sa.Column("rewound_tokens", sa.BigInteger(), nullable=False),
        sa.Column("rewound_evaluation_tokens", sa.BigInteger(), nullable=False),
        sa.Column("rewound_gpu_seconds", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_task_usage_task_id_tasks"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_task_usage_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("task_id", "month", name="pk_task_usage"),
    )
    op.create_index("ix_task_usage_tenant_id_month", "task_usage", ["tenant_id", "month"])
    op.create_table(
        "adapters",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("task_id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("val_loss", sa.Double(), nullable=False),
        sa.Column("manifest", JSONB(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        stamped("created_at"),
        sa.Column("deleted_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_adapters_job_id_jobs"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_adapters_task_id_tasks"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_adapters_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_adapters"),
        sa.UniqueConstraint("job_id", name="uq_adapters_job_id"),
    )
    op.create_index("ix_adapters_task_id", "adapters", ["task_id"])
    op.create_index("ix_adapters_tenant_id", "adapters", ["tenant_id"])
    op.create_table(
        "curve_summaries",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("series", sa.String(length=16), nullable=False),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("buckets", ARRAY(sa.Integer()), nullable=False),
        sa.Column("counts", ARRAY(sa.Integer()), nullable=False),
        sa.Column("means", ARRAY(sa.Double()), nullable=False),
        sa.Column("mins", ARRAY(sa.Double()), nullable=False),
        sa.Column("maxs", ARRAY(sa.Double()), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_curve_summaries_job_id_jobs"),
        sa.PrimaryKeyConstraint("job_id", "series", name="pk_curve_summaries"),
    )
    op.create_table(
        "point_chunks",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("series", sa.String(length=16), nullable=False),
        sa.Column("first_step", sa.Integer(), nullable=False),
        sa.Column("last_step", sa.Integer(), nullable=False),
        sa.Column("steps", ARRAY(sa.Integer()), nullable=False),
        sa.Column("values", ARRAY(sa.Double()), nullable=False),
        sa.Column("hidden_by", sa.BigInteger()),
        sa.CheckConstraint("cardinality(steps) = cardinality(values)", name="ck_point_chunks_paired"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_point_chunks_job_id_jobs"),
        sa.PrimaryKeyConstraint("id", name="pk_point_chunks"),
    )
    op.create_index("ix_point_chunks_hidden", "point_chunks", ["job_id"], postgresql_where=sa.text("hidden_by IS NOT NULL"))
    op.create_index(
        "uq_point_chunks_visible",
        "point_chunks",
        ["job_id", "series", "first_step"],
        unique=True,
        postgresql_where=sa.text("hidden_by IS NULL"),
    )


def downgrade() -> None:
    for table in TABLES:
        op.drop_table(table)
