"""Tables of the planner: plan requests, its lease, plans, their changes per task, and what the fleet has learned."""

from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Double, ForeignKey, Index, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from service.database.checked_json import CheckedJson, UnreadDict
from service.database.engine import At, Base, Big, Id, Now

_DOCUMENT = TypeAdapter(dict[str, Any])


class PlanRequest(Base):
    """One change that requires a new plan. The planner deletes exactly the rows it read."""

    __tablename__ = "plan_requests"

    id: Mapped[Big] = mapped_column(primary_key=True, autoincrement=True)
    reason: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[Now]


class PlannerLease(Base):
    """A single row with the token of the planner that may write."""

    __tablename__ = "planner_lease"

    id: Mapped[int] = mapped_column(primary_key=True)  # always 1
    token: Mapped[str] = mapped_column(String(40))
    until: Mapped[At]


class QueueStatus(Base):
    """What the plan in force says of all waiting tasks of one tenant, packed into one row."""

    __tablename__ = "queue_status"

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    number: Mapped[Big]  # of the plan, ascending
    untold: Mapped[int]  # tasks with news that is not yet notified
    packed: Mapped[bytes] = mapped_column(LargeBinary)  # see queue_status.py


class Plan(Base):
    """One decision, with what explains it."""

    __tablename__ = "plans"

    id: Mapped[Id]
    created_at: Mapped[Now]
    requests: Mapped[int]  # number of plan requests that it answered
    method: Mapped[str] = mapped_column(String(16))  # of a Decision
    solver_status: Mapped[str | None] = mapped_column(String(16))
    objective: Mapped[float | None] = mapped_column(Double)
    bound: Mapped[float | None] = mapped_column(Double)
    seconds: Mapped[float] = mapped_column(Double)  # solver time
    latency_seconds: Mapped[float | None] = mapped_column(Double)  # from the oldest plan request that it answers to its commit
    problem: Mapped[dict[str, Any]] = mapped_column(CheckedJson(_DOCUMENT, UnreadDict))
    decision: Mapped[dict[str, Any]] = mapped_column(CheckedJson(_DOCUMENT, UnreadDict))
    note: Mapped[str | None] = mapped_column(Text)


class PlanChange(Base):
    """One change of a task's plan: another reason or time to wait, placed, or left its node. Its history, in order."""

    __tablename__ = "plan_changes"

    id: Mapped[Id]
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"))
    kind: Mapped[str] = mapped_column(String(16))  # waits, placed, or left
    said: Mapped[dict[str, Any]] = mapped_column(CheckedJson(_DOCUMENT, UnreadDict))  # waits: as in tasks.waiting
    created_at: Mapped[Now]

    __table_args__ = (Index("ix_plan_changes_task", "task_id", "created_at", "id"),)


class ThroughputProfile(Base):
    """A moving average of a base's step time on a device type; throughput.Key and throughput.Profile as a row."""

    __tablename__ = "throughput_profiles"

    base_model: Mapped[str] = mapped_column(String(128), primary_key=True)
    precision: Mapped[str] = mapped_column(String(16), primary_key=True)
    device_type: Mapped[str] = mapped_column(String(128), primary_key=True)
    tokens: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)  # per step and device, up to a power of two
    rows: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)  # adapter rows, likewise; 0: not reported
    width: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)  # devices of the placement
    mean_tokens: Mapped[float] = mapped_column(Double)
    log_seconds: Mapped[float] = mapped_column(Double)
    variance: Mapped[float] = mapped_column(Double)
    measured: Mapped[int]


class SurvivalRow(Base):
    """Exits and phases lived by the jobs of a shape class; survival.Lives as a row."""

    __tablename__ = "survivals"

    shape_class: Mapped[str] = mapped_column(String(255), primary_key=True)
    warm_exits: Mapped[float] = mapped_column(Double)
    warm_lived: Mapped[float] = mapped_column(Double)
    late_exits: Mapped[float] = mapped_column(Double)
    late_lived: Mapped[float] = mapped_column(Double)
