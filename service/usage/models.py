"""Usage tables: totals that outlive the placements and curves they were computed from."""

from datetime import date

from sqlalchemy import BigInteger, Double, ForeignKey, Index, SmallInteger, String
from sqlalchemy.orm import Mapped, mapped_column

from service.database.engine import Base, Big


class TaskUsageRecord(Base):
    """A task's usage by placements of one month, and the part that rewinds undid. Seconds are summed over GPUs."""

    __tablename__ = "task_usage"

    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"), primary_key=True)
    month: Mapped[date] = mapped_column(primary_key=True)  # its first day, in UTC; a placement counts in the month it began
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    tokens: Mapped[Big]
    evaluation_tokens: Mapped[Big]
    gpu_seconds: Mapped[float] = mapped_column(Double)
    rewound_tokens: Mapped[Big]
    rewound_evaluation_tokens: Mapped[Big]
    rewound_gpu_seconds: Mapped[float] = mapped_column(Double)

    __table_args__ = (Index("ix_task_usage_tenant_id_month", "tenant_id", "month"),)


class TenantUsage(Base):
    """A tenant's monthly counter of tokens trained, without those that rewinds undid. Sharded over SHARDS rows, so that
    concurrent reports do not wait for each other's commits on one row."""

    __tablename__ = "tenant_usage"

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    month: Mapped[date] = mapped_column(primary_key=True)
    shard: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    tokens: Mapped[Big]


class CompletionUsage(Base):
    """What a tenant's completions used in a month, by base and adapter. Seconds are of one GPU."""

    __tablename__ = "completion_usage"

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    month: Mapped[date] = mapped_column(primary_key=True)
    base_model: Mapped[str] = mapped_column(String(128), primary_key=True)
    adapter_id: Mapped[str] = mapped_column(String(40), primary_key=True)  # empty: the base alone
    requests: Mapped[Big]
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    completion_tokens: Mapped[int] = mapped_column(BigInteger)
    gpu_seconds: Mapped[float] = mapped_column(Double)
