"""Tables of tenants with their quotas, API keys, browser sessions and sign-in links. Of a secret only its SHA-256 is stored."""

from sqlalchemy import BigInteger, ForeignKey, LargeBinary, String
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
