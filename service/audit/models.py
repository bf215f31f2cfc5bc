"""The audit table: one entry for each request that wrote something or read an adapter. Append-only."""

from sqlalchemy import ForeignKey, Index, String, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from service.database.engine import Base, Id, Now


class AuditEntry(Base):
    __tablename__ = "audit_entries"

    id: Mapped[Id]
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))  # of the key
    key_id: Mapped[str] = mapped_column(String(40))
    action: Mapped[str] = mapped_column(String(64))  # the operation's id in openapi.yaml
    targets: Mapped[list[str]] = mapped_column(ARRAY(String(255)))  # ids in the path, then those of created rows
    request_id: Mapped[str] = mapped_column(String(64))
    user_id: Mapped[str | None] = mapped_column(String(40))  # of a member's key or session
    actor: Mapped[str | None] = mapped_column(String(600))  # how the member or service account was called then
    created_at: Mapped[Now]

    __mapper_args__ = {"eager_defaults": False}  # noqa: RUF012  # the writer never reads it back
    __table_args__ = (Index("ix_audit_entries_tenant_id_created", "tenant_id", text("created_at DESC"), text("id DESC")),)
