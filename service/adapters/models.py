"""The adapters table: a job's best checkpoint or a tenant's upload, immutable until its tenant deletes it."""

from typing import Any

from sqlalchemy import BigInteger, Double, ForeignKey, Index, String, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from contract.messages.adapter_manifest import AdapterManifest, UploadedManifest
from service.database.engine import At, Base, Id, Json, Now


class Adapter(Base):
    __tablename__ = "adapters"

    id: Mapped[Id]
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    task_id: Mapped[str | None] = mapped_column(ForeignKey("tasks.id"), index=True)  # this and the next three: null if uploaded
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"), unique=True)
    step: Mapped[int | None]
    val_loss: Mapped[float | None] = mapped_column(Double)
    name: Mapped[str | None] = mapped_column(String(128))  # as its uploader calls it
    manifest: Mapped[Json]  # of contract.messages.adapter_manifest: an AdapterManifest, or if uploaded an UploadedManifest
    scores: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True), deferred=True)  # a RowScores
    bytes: Mapped[int] = mapped_column(BigInteger)  # of its files; counts towards the stored-bytes quota
    created_at: Mapped[Now]
    deleted_at: Mapped[At | None]  # afterwards it uses no quota, and garbage collection deletes its objects

    @property
    def folder(self) -> AdapterManifest | UploadedManifest:
        """The manifest, read."""
        return (UploadedManifest if self.task_id is None else AdapterManifest).model_validate(self.manifest)

    __table_args__ = (
        Index("ix_adapters_tenant_id_created", "tenant_id", text("created_at DESC"), text("id DESC")),
        Index("ix_adapters_uploaded", "deleted_at", postgresql_where=text("task_id IS NULL")),
        Index("ix_adapters_bytes", "tenant_id", postgresql_include=["bytes"], postgresql_where=text("deleted_at IS NULL")),
    )
