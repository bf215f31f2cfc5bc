"""The schedule as a tenant may see it: what runs where and until when, what waits and why. Others' tasks have no names."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from contract.states import TaskStatus
from service.fleet.models import Node, Placement
from service.scheduler.models import Plan
from service.scheduler.state.usage_shares import kind_of
from service.tasks.models import Task

_LISTED = 1000  # waiting tasks

Interval = Field(description="Earliest and latest; the true moment lies between them most of the time")


class Running(BaseModel):
    """A task on a node. Another tenant's has neither id nor name."""

    task_id: str | None
    name: str | None
    gpus: int
    since: datetime
    leaving: bool = Field(description="It was asked to go, and brings its jobs to safety")
    expected_end: datetime | None
    expected_end_interval: list[datetime] | None = Interval


class ScheduledNode(BaseModel):
    name: str
    device_type: str
    gpus: int
    free: int
    drained: bool
    running: list[Running]


class Waiting(BaseModel):
    """A queued task, in the order in which they are expected to start. Another tenant's has neither id, name nor reason."""

    task_id: str | None
    name: str | None
    gpus: int
    place: int | None
    node: str | None = Field(description="Where it is planned")
    code: str | None
    sentence: str | None
    expected_start: datetime | None
    expected_start_interval: list[datetime] | None = Interval
    expected_end: datetime | None
    expected_end_interval: list[datetime] | None = Interval


class Schedule(BaseModel):
    """All nodes and the queue as the last plan left them."""

    object: Literal["schedule"] = "schedule"
    planned_at: datetime | None
    nodes: list[ScheduledNode]
    waiting: list[Waiting]
    waiting_total: int


def schedule(session: Session, tenant_id: str) -> Schedule:
    """For this tenant. The session must see all tenants' rows."""
    nodes = list(session.scalars(select(Node).where(Node.status == "ready").order_by(Node.name)))
    live = session.execute(
        select(Placement, Task)
        .join(Task, Task.id == Placement.task_id)
        .where(Placement.ended_at.is_(None))
        .order_by(Placement.expected_end, Placement.id)
    ).all()
    queued = list(session.scalars(select(Task).where(Task.status == TaskStatus.QUEUED).order_by(Task.queued_at, Task.id)))
    queued.sort(key=lambda task: (task.waiting or {}).get("place") or len(queued) + 1)
    return Schedule(
        planned_at=session.scalar(select(Plan.created_at).order_by(Plan.id.desc()).limit(1)),
        nodes=[
            _node(node, [(placed, task) for placed, task in live if placed.node_id == node.id], tenant_id) for node in nodes
        ],
        waiting=[_waiting(task, task.tenant_id == tenant_id) for task in queued[:_LISTED]],
        waiting_total=len(queued),
    )


def _node(node: Node, live: list[tuple[Placement, Task]], tenant_id: str) -> ScheduledNode:
    return ScheduledNode(
        name=node.name,
        device_type=kind_of(node),
        gpus=len(node.devices),
        free=max(0, len(node.devices) - sum(len(placed.device_indexes) for placed, _ in live)),
        drained=node.drained_at is not None,
        running=[_running(placed, task, task.tenant_id == tenant_id) for placed, task in live],
    )


def _running(placed: Placement, task: Task, own: bool) -> Running:
    low, high = placed.expected_low, placed.expected_high
    return Running(
        task_id=task.id if own else None,
        name=task.name if own else None,
        gpus=len(placed.device_indexes),
        since=placed.created_at,
        leaving=placed.leaving is not None,
        expected_end=placed.expected_end,
        expected_end_interval=[low, high] if low is not None and high is not None else None,
    )


def _waiting(task: Task, own: bool) -> Waiting:
    said: dict[str, Any] = task.waiting or {}
    told = ("place", "node", "expected_start", "expected_start_interval", "expected_end", "expected_end_interval")
    return Waiting(
        task_id=task.id if own else None,
        name=task.name if own else None,
        gpus=task.gpus,
        code=said.get("code") if own else None,
        sentence=said.get("sentence") if own else None,
        **{name: said.get(name) for name in told},
    )
