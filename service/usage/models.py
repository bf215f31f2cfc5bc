"""Usage tables: totals that outlive the placements and curves they were computed from."""

from datetime import date, datetime

from sqlalchemy import BigInteger, DateTime, Double, ForeignKey, Index, SmallInteger, String, text
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

    __table_args__ = (Index("ix_task_usage_listed", "tenant_id", "month", text("task_id DESC")),)


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


class DailyUsage(Base):
    """A task's billed usage by placements that began on one day, in UTC, on one type of GPU, as far as it is rolled up
    (daily_rollup.py). Seconds are summed over GPUs."""

    __tablename__ = "daily_usage"

    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"), primary_key=True)
    day: Mapped[date] = mapped_column(primary_key=True)
    device_type: Mapped[str] = mapped_column(String(128), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    tokens: Mapped[Big]
    evaluation_tokens: Mapped[Big]
    rewound_tokens: Mapped[Big]  # not billed
    gpu_seconds: Mapped[float] = mapped_column(Double)

    __table_args__ = (Index("ix_daily_usage_tenant_id_day", "tenant_id", "day"),)


class TenantDailyUsage(Base):
    """The same of all the tenant's tasks."""

    __tablename__ = "tenant_daily_usage"

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    day: Mapped[date] = mapped_column(primary_key=True)
    device_type: Mapped[str] = mapped_column(String(128), primary_key=True)
    tokens: Mapped[Big]
    evaluation_tokens: Mapped[Big]
    rewound_tokens: Mapped[Big]
    gpu_seconds: Mapped[float] = mapped_column(Double)


class MonthlySavings(Base):
    """What early exits spared a tenant's ended tasks in all their time, by each month in which these ran."""

    __tablename__ = "monthly_savings"

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    month: Mapped[date] = mapped_column(primary_key=True)
    saved_tokens: Mapped[Big]
    saved_gpu_seconds: Mapped[float] = mapped_column(Double)


class RolledUpThrough(Base):
    """One row: placements and tasks that ended before `moment` are in the three tables above."""

    __tablename__ = "usage_rolled_up_through"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False, default=1)
    moment: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class GpuPrice(Base):
    """What an hour of one GPU of a type costs from a day on, in UTC, in MOTET_CURRENCY."""

    __tablename__ = "gpu_prices"

    device_type: Mapped[str] = mapped_column(String(128), primary_key=True)
    from_day: Mapped[date] = mapped_column(primary_key=True)
    per_hour: Mapped[float] = mapped_column(Double)
