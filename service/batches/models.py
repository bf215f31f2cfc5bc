"""The table of batches: tasks that were posted together."""

from typing import Any

from sqlalchemy import ForeignKey, Index, String, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import Mapped, mapped_column

from service.database.engine import At, Base, Id, Json, Now


class Batch(Base):
    """Tasks that were posted together, to be planned for one objective. Its tasks change as any others do."""

    __tablename__ = "batches"

    id: Mapped[Id]
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str | None] = mapped_column(String(128))
    objective: Mapped[str] = mapped_column(String(32))  # makespan or weighted_completion
    deadline: Mapped[At | None]
    labels: Mapped[Json] = mapped_column(default=dict)
    task_ids: Mapped[list[str]] = mapped_column(ARRAY(String(40)))  # in the order in which they were posted
    plan: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))  # how its waiting tasks were last arranged
    created_at: Mapped[Now]

    __table_args__ = (Index("ix_batches_tenant_id_created", "tenant_id", text("created_at DESC"), text("id DESC")),)
