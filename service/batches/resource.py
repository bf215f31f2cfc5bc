"""A batch as the API shows it: how its tasks stand, and when the last of them is expected to end."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field
from sqlalchemy import Row, and_, func, select
from sqlalchemy.orm import Session

from contract.states import TASK_TERMINAL, TaskStatus
from service.batches.models import Batch, BatchPlanResource
from service.database.checked_json import readable
from service.database.engine import among_ids, clock
from service.fleet.models import Node, Placement
from service.http.problems import AsMade, unread_columns
from service.tasks.models import Task
from service.tasks.plan_status import queue_status

BatchStatus = Literal["queued", "running", "succeeded", "failed", "cancelled"]
_WAITS = (TaskStatus.VALIDATING, TaskStatus.QUEUED)


class BatchTask(BaseModel):
    """One task of the batch. Expected times are null while nothing is known of them."""

    id: str
    name: str | None
    status: TaskStatus
    gpus: int = Field(description="That it runs on, or is planned to run on; else that it asks for")
    node: str | None = Field(description="Where it runs, or is planned to run")
    expected_start: datetime | None
    expected_end: datetime | None


class BatchResource(BaseModel):
    """A batch. It has ended once all its tasks have."""

    object: Literal["batch"] = "batch"
    id: str
    name: str | None
    objective: str
    deadline: datetime | None
    labels: dict[str, str]
    status: BatchStatus = Field(description="failed: a task failed; cancelled: none failed, but one was cancelled")
    created_at: datetime
    started_at: datetime | None = Field(description="Of its first task")
    ended_at: datetime | None = Field(description="Of its last task, once all have ended")
    expected_end: datetime | None = Field(description="Of its last task; null while a task's is unknown")
    late: bool = Field(description="Whether the deadline is missed, or expected to be")
    counts: dict[TaskStatus, int] = Field(description="How many tasks stand at each status")
    tasks: list[BatchTask] = Field(description="In the order in which they were posted")
    plan: BatchPlanResource | None
    problems: AsMade = None


# the tasks `ids` that are not deleted, with their live placements: columns as `_task` reads them
_TASKS = (
    select(
        *(Task.id, Task.tenant_id, Task.name, Task.status, Task.fence, Task.gpus, Task.waiting),
        *(Task.started_at, Task.ended_at),
        Node.name.label("node"),
        Placement.created_at.label("placed_at"),
        func.cardinality(Placement.device_indexes).label("placed_gpus"),
        Placement.expected_end.label("placed_until"),
    )
    .outerjoin(Placement, and_(Placement.task_id == Task.id, Placement.ended_at.is_(None)))
    .outerjoin(Node, Node.id == Placement.node_id)
    .where(among_ids(Task.id), Task.deleted_at.is_(None))
)


def render(session: Session, batches: Sequence[Batch]) -> list[BatchResource]:
    """The batches' resources, in the same order, by one query for the tasks of all; one more where tasks wait."""
    session.flush()
    rows = session.execute(_TASKS, {"ids": [id for batch in batches for id in batch.task_ids]}).all()
    waiting = [row.id for row in rows if row.status == TaskStatus.QUEUED]
    entries = queue_status.NONE
    if waiting:
        entries = queue_status.entries_of(session.execute(queue_status.OF_TASKS, {"ids": waiting}).all())
    by_id = {row.id: row for row in rows}
    now = clock(session)
    return [_render(batch, [by_id[id] for id in batch.task_ids if id in by_id], entries, now) for batch in batches]


def _render(batch: Batch, rows: Sequence[Row[Any]], entries: queue_status.Entries, now: datetime) -> BatchResource:
    tasks = [row for row in rows if row.tenant_id == batch.tenant_id]
    shown = [_task(task, queue_status.waiting_of(task, entries)) for task in tasks]
    status, ended = _status(tasks), _last([task.ended_at for task in tasks])
    expected = None if ended is not None else _last([one.expected_end for one in shown if one.status not in TASK_TERMINAL])
    end = ended or max(expected or now, now)
    counts = Counter(task.status for task in tasks)
    return BatchResource(
        id=batch.id,
        name=batch.name,
        objective=batch.objective,
        deadline=batch.deadline,
        labels=batch.labels,
        status=status,
        created_at=batch.created_at,
        started_at=min((task.started_at for task in tasks if task.started_at is not None), default=None),
        ended_at=ended,
        expected_end=expected,
        late=batch.deadline is not None and end > batch.deadline,
        counts={one: counts[one] for one in TaskStatus},
        tasks=shown,
        plan=readable(batch.plan),
        problems=unread_columns(batch, "batch", "labels", "plan"),
    )


def _task(task: Row[Any], waiting: dict[str, Any] | None) -> BatchTask:
    said: dict[str, Any] = waiting or {}
    node, start, end, gpus = (said.get(name) for name in ("node", "expected_start", "expected_end", "gpus"))
    if task.node is not None:
        node, start, end, gpus = task.node, task.placed_at, task.placed_until, task.placed_gpus
    status = TaskStatus(task.status)
    return BatchTask(
        id=task.id,
        name=task.name,
        status=status,
        gpus=gpus or task.gpus,
        node=node,
        expected_start=start,
        expected_end=end,
    )


def _status(tasks: Sequence[Row[Any]]) -> BatchStatus:
    held = {TaskStatus(task.status) for task in tasks}
    if not held <= TASK_TERMINAL:
        return "queued" if held <= set(_WAITS) else "running"
    if TaskStatus.FAILED in held:
        return "failed"
    return "cancelled" if TaskStatus.CANCELLED in held else "succeeded"


def _last(moments: Sequence[datetime | None]) -> datetime | None:
    """The latest of them; None if any is unknown, or there are none."""
    known = [moment for moment in moments if moment is not None]
    return max(known) if known and len(known) == len(moments) else None
