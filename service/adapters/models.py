"""Adapters: the best checkpoint of a job, committed once and immutable."""

from sqlalchemy import Double, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from service.database.engine import Base, Id, Json, Now


class Adapter(Base):
    __tablename__ = "adapters"

    id: Mapped[Id]
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"), index=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), unique=True)
    step: Mapped[int]
    val_loss: Mapped[float] = mapped_column(Double)
    manifest: Mapped[Json]  # a contract.adapter_manifest.AdapterManifest
    created_at: Mapped[Now]
