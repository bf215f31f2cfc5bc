"""Tenants and their API keys. A key is stored as its SHA-256 alone."""

from sqlalchemy import ForeignKey, LargeBinary, String
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from service.db import At, Base, Id, Now


class Tenant(Base):
    __tablename__ = "tenants"

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(String(128), unique=True)
    weight: Mapped[float] = mapped_column(default=1.0, server_default="1")  # of its fair share
    max_running_gpus: Mapped[int | None]  # its quota; none without one
    created_at: Mapped[Now]


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
