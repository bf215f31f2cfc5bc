"""What was used, as numbers: they outlive the placements and curves that they came from."""

from datetime import date

from sqlalchemy import Double, ForeignKey, Index, SmallInteger
from sqlalchemy.orm import Mapped, mapped_column

from service.database.engine import Base, Big


class TaskUsage(Base):
    """What a task's placements of one month did, and what of it rewinds took back. Seconds are those of each device, summed."""

    __tablename__ = "task_usage"

    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"), primary_key=True)
    month: Mapped[date] = mapped_column(primary_key=True)  # its first day, in UTC; a placement counts for that it began in
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    tokens: Mapped[Big]
    evaluation_tokens: Mapped[Big]
    gpu_seconds: Mapped[float] = mapped_column(Double)
    rewound_tokens: Mapped[Big]
    rewound_evaluation_tokens: Mapped[Big]
    rewound_gpu_seconds: Mapped[float] = mapped_column(Double)

    __table_args__ = (Index("ix_task_usage_tenant_id_month", "tenant_id", "month"),)


class TenantUsage(Base):
    """The month's counter of a tenant: tokens trained and not taken back, in SHARDS rows, since reports of many tasks at once
    would wait for each other's commits at one."""

    __tablename__ = "tenant_usage"

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    month: Mapped[date] = mapped_column(primary_key=True)
    shard: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    tokens: Mapped[Big]
