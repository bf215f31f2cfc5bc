"""The table of batches: tasks that were posted together."""

from datetime import datetime

from pydantic import BaseModel, Field, TypeAdapter
from sqlalchemy import ForeignKey, Index, String, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from service.database.checked_json import CheckedJson, ParsedJson, UnreadDict, UnreadValue
from service.database.engine import At, Base, Id, Now


class BatchPlanResource(BaseModel):
    """How the newest plan arranged the tasks that wait."""

    at: datetime
    makespan_seconds: int = Field(description="From then until the last of them was to end")
    method: str = Field(
        description="start: all fit at once. batch, greedy, longest_first: by rules. cpsat: by the solver. rules: as alone"
    )
    solver_status: str | None = Field(description="OPTIMAL: no plan of the waiting tasks ends sooner")
    bound_seconds: int | None = Field(description="No plan ends sooner than this, by the solver")


_LABELS, _PLAN = TypeAdapter(dict[str, str]), TypeAdapter(BatchPlanResource)


class Batch(Base):
    """Tasks that were posted together, to be planned for one objective. Its tasks change as any others do."""

    __tablename__ = "batches"

    id: Mapped[Id]
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str | None] = mapped_column(String(128))
    objective: Mapped[str] = mapped_column(String(32))  # makespan or weighted_completion
    deadline: Mapped[At | None]
    labels: Mapped[dict[str, str]] = mapped_column(CheckedJson(_LABELS, UnreadDict), default=dict)
    task_ids: Mapped[list[str]] = mapped_column(ARRAY(String(40)))  # in the order in which they were posted
    # how its waiting tasks were last arranged
    plan: Mapped[BatchPlanResource | UnreadValue | None] = mapped_column(
        ParsedJson(_PLAN, "plan of the batch (batches.plan)", none_as_null=True)
    )
    created_at: Mapped[Now]

    __table_args__ = (Index("ix_batches_tenant_id_created", "tenant_id", text("created_at DESC"), text("id DESC")),)
