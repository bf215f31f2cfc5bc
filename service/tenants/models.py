"""Tables of tenants, users and memberships, API keys, browser sessions, links. Of a secret only its SHA-256 is stored."""

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, LargeBinary, String, UniqueConstraint, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from service.database.engine import At, Base, Id, Now

QUEUED_TASKS = 1000  # default quota of a new tenant


class Tenant(Base):
    __tablename__ = "tenants"

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(String(128), unique=True)
    weight: Mapped[float] = mapped_column(default=1.0, server_default="1")  # of its fair share
    created_at: Mapped[Now]
    max_slowdown: Mapped[float | None]  # default bound of its tasks beside others; null: the product's
    # quotas; null: no limit
    running_gpus_quota: Mapped[int | None]
    queued_tasks_quota: Mapped[int | None] = mapped_column(default=QUEUED_TASKS, server_default=str(QUEUED_TASKS))
    stored_bytes_quota: Mapped[int | None] = mapped_column(BigInteger)
    month_tokens_quota: Mapped[int | None] = mapped_column(BigInteger)


class User(Base):
    """A person as the identity provider knows them. They belong to tenants by memberships."""

    __tablename__ = "users"

    id: Mapped[Id]
    issuer: Mapped[str] = mapped_column(String(512))
    subject: Mapped[str] = mapped_column(String(255))
    email: Mapped[str | None] = mapped_column(String(320))  # only where the provider says that it is verified
    name: Mapped[str | None] = mapped_column(String(255))
    label: Mapped[str] = mapped_column(String(600))  # how the audit log names them: the address, else name and subject
    created_at: Mapped[Now]
    signed_in_at: Mapped[Now]

    __table_args__ = (UniqueConstraint("issuer", "subject"),)


class Membership(Base):
    """What a user may do in a tenant. Its row is deleted when it ends, and with it all rights of the user's keys there."""

    __tablename__ = "memberships"

    id: Mapped[Id]
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), index=True)
    role: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[Now]
    signed_in_at: Mapped[Now]  # into this tenant: the newest is where the next sign-in leads

    __table_args__ = (UniqueConstraint("tenant_id", "user_id"),)


class Invitation(Base):
    """A one-time link into a tenant. With an address, only for who signs in with that verified address."""

    __tablename__ = "invitations"

    id: Mapped[Id]
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    hash: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    role: Mapped[str] = mapped_column(String(16))
    email: Mapped[str | None] = mapped_column(String(320))
    invited_by: Mapped[str] = mapped_column(String(600))
    inviter_id: Mapped[str | None] = mapped_column(ForeignKey("users.id"))  # null: an admin of the platform
    created_at: Mapped[Now]
    expires_at: Mapped[At]
    accepted_at: Mapped[At | None]
    accepted_by: Mapped[str | None] = mapped_column(ForeignKey("users.id"))
    revoked_at: Mapped[At | None]


class ServiceAccount(Base):
    """A program of the tenant with a role and keys of its own, which stay when members leave."""

    __tablename__ = "service_accounts"

    id: Mapped[Id]
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(128))
    role: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[Now]
    deleted_at: Mapped[At | None]

    __table_args__ = (
        Index("uq_service_accounts_name", "tenant_id", "name", unique=True, postgresql_where=text("deleted_at IS NULL")),
    )


class ApiKey(Base):
    __tablename__ = "api_keys"

    id: Mapped[Id]
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    name: Mapped[str] = mapped_column(String(128))
    hash: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    scopes: Mapped[list[str]] = mapped_column(ARRAY(String(16)))  # of read, write, admin
    created_at: Mapped[Now]
    expires_at: Mapped[At | None]
    revoked_at: Mapped[At | None]
    requests_per_minute: Mapped[int | None]  # null: the settings' limit
    # of a member's or service account's key: whose, and the role that it has at most. All null: the tenant's own key
    role: Mapped[str | None] = mapped_column(String(16))
    user_id: Mapped[str | None] = mapped_column(ForeignKey("users.id"), index=True)
    service_account_id: Mapped[str | None] = mapped_column(ForeignKey("service_accounts.id"), index=True)
    for_sessions: Mapped[bool] = mapped_column(default=False, server_default="false")  # browser sessions' alone, never shown

    __table_args__ = (
        CheckConstraint("num_nonnulls(user_id, service_account_id) = (role IS NOT NULL)::integer", name="holder"),
    )


class BrowserSession(Base):
    """A signed-in browser: it acts with the rights of the key that it was opened with, and ends with that key at the latest."""

    __tablename__ = "browser_sessions"

    hash: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"))
    created_at: Mapped[Now]
    expires_at: Mapped[At] = mapped_column(index=True)


class SignInLink(Base):
    """A one-time secret that opens a browser session of this key."""

    __tablename__ = "sign_in_links"

    hash: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"))
    created_at: Mapped[Now]
    expires_at: Mapped[At] = mapped_column(index=True)
