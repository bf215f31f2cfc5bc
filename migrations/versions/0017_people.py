"""Users, memberships, invitations, service accounts; keys and audit entries say whose they are."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"

_MOMENT, _NOW = sa.DateTime(timezone=True), sa.text("clock_timestamp()")
_OF_KEYS = (("user_id", "users"), ("service_account_id", "service_accounts"))


def upgrade() -> None:
    _create_users()
    _create_memberships()
    _create_invitations()
    _create_service_accounts()
    op.add_column("audit_entries", sa.Column("user_id", sa.String(40)))
    op.add_column("audit_entries", sa.Column("actor", sa.String(600)))
    op.add_column("api_keys", sa.Column("role", sa.String(16)))
    op.add_column("api_keys", sa.Column("for_sessions", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    for column, table in _OF_KEYS:
        op.add_column("api_keys", sa.Column(column, sa.String(40)))
        name = f"fk_api_keys_{column}_{table}"
        op.create_foreign_key(name, "api_keys", table, [column], ["id"], postgresql_not_valid=True)
    op.create_check_constraint(
        op.f("ck_api_keys_holder"),
        "api_keys",
        "num_nonnulls(user_id, service_account_id) = (role IS NOT NULL)::integer",
        postgresql_not_valid=True,
    )
    with op.get_context().autocommit_block():
        for column, table in _OF_KEYS:
            op.execute(f"ALTER TABLE api_keys VALIDATE CONSTRAINT fk_api_keys_{column}_{table}")
            op.create_index(f"ix_api_keys_{column}", "api_keys", [column], postgresql_concurrently=True, if_not_exists=True)
        op.execute("ALTER TABLE api_keys VALIDATE CONSTRAINT ck_api_keys_holder")


def _create_users() -> None:
    op.create_table(
        "users",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("issuer", sa.String(512), nullable=False),
        sa.Column("subject", sa.String(255), nullable=False),
        sa.Column("email", sa.String(320)),
        sa.Column("name", sa.String(255)),
        sa.Column("label", sa.String(600), nullable=False),
        sa.Column("created_at", _MOMENT, server_default=_NOW, nullable=False),
        sa.Column("signed_in_at", _MOMENT, server_default=_NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_users"),
        sa.UniqueConstraint("issuer", "subject", name="uq_users_issuer_subject"),
    )


def _create_memberships() -> None:
    op.create_table(
        "memberships",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant_id", sa.String(40), nullable=False),
        sa.Column("user_id", sa.String(40), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created_at", _MOMENT, server_default=_NOW, nullable=False),
        sa.Column("signed_in_at", _MOMENT, server_default=_NOW, nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_memberships_tenant_id_tenants"),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_memberships_user_id_users"),
        sa.PrimaryKeyConstraint("id", name="pk_memberships"),
        sa.UniqueConstraint("tenant_id", "user_id", name="uq_memberships_tenant_id_user_id"),
    )
    op.create_index("ix_memberships_user_id", "memberships", ["user_id"])


def _create_invitations() -> None:
    op.create_table(
        "invitations",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant_id", sa.String(40), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("email", sa.String(320)),
        sa.Column("invited_by", sa.String(600), nullable=False),
        sa.Column("inviter_id", sa.String(40)),
        sa.Column("created_at", _MOMENT, server_default=_NOW, nullable=False),
        sa.Column("expires_at", _MOMENT, nullable=False),
        sa.Column("accepted_at", _MOMENT),
        sa.Column("accepted_by", sa.String(40)),
        sa.Column("revoked_at", _MOMENT),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_invitations_tenant_id_tenants"),
        sa.ForeignKeyConstraint(["accepted_by"], ["users.id"], name="fk_invitations_accepted_by_users"),
        sa.ForeignKeyConstraint(["inviter_id"], ["users.id"], name="fk_invitations_inviter_id_users"),
        sa.PrimaryKeyConstraint("id", name="pk_invitations"),
        sa.UniqueConstraint("hash", name="uq_invitations_hash"),
    )
    op.create_index("ix_invitations_tenant_id", "invitations", ["tenant_id"])


def _create_service_accounts() -> None:
    op.create_table(
        "service_accounts",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant_id", sa.String(40), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created_at", _MOMENT, server_default=_NOW, nullable=False),
        sa.Column("deleted_at", _MOMENT),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_service_accounts_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_service_accounts"),
    )
    live = sa.text("deleted_at IS NULL")
    op.create_index("uq_service_accounts_name", "service_accounts", ["tenant_id", "name"], unique=True, postgresql_where=live)


def downgrade() -> None:
    op.drop_constraint("ck_api_keys_holder", "api_keys")
    for column in ("for_sessions", "service_account_id", "user_id", "role"):
        op.drop_column("api_keys", column)
    for column in ("actor", "user_id"):
        op.drop_column("audit_entries", column)
    for table in ("service_accounts", "invitations", "memberships", "users"):
        op.drop_table(table)
