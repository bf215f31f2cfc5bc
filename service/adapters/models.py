"""The adapters table: a job's best checkpoint, committed once and immutable until its tenant deletes it."""

from typing import Any

from sqlalchemy import BigInteger, Double, ForeignKey, Index, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from service.database.engine import At, Base, Id, Json, Now


class Adapter(Base):
    __tablename__ = "adapters"

    id: Mapped[Id]
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"), index=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), unique=True)
    step: Mapped[int]
    val_loss: Mapped[float] = mapped_column(Double)
    manifest: Mapped[Json]  # a contract.messages.adapter_manifest.AdapterManifest
    scores: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True), deferred=True)  # a RowScores
    bytes: Mapped[int] = mapped_column(BigInteger)  # of its files; counts towards the stored-bytes quota
    created_at: Mapped[Now]
    deleted_at: Mapped[At | None]  # afterwards it uses no quota, and garbage collection deletes its objects

    __table_args__ = (
        Index("ix_adapters_tenant_id_created", "tenant_id", text("created_at DESC"), text("id DESC")),
        Index("ix_adapters_bytes", "tenant_id", postgresql_include=["bytes"], postgresql_where=text("deleted_at IS NULL")),
    )
