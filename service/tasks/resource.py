"""A task as the API shows it, made from few queries however many tasks and jobs there are."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field
from sqlalchemy import BigInteger, Row, case, func, select
from sqlalchemy import cast as sql_cast
from sqlalchemy.orm import Session

from contract.search import JobConfig
from contract.states import JOB_TERMINAL, TASK_TERMINAL, JobStatus, RequeueReason, TaskStatus
from service.adapters.models import Adapter
from service.db import among_ids
from service.fleet.models import Node, Placement
from service.tasks.models import Job, Task


class Rows(BaseModel):
    """How the data set came out at the worker; null until then."""

    train: int | None
    validation: int | None
    truncated: int | None = Field(description="Longer than max_seq_len, cut")
    skipped: int | None = Field(description="Nothing left to train on after truncation")


class Progress(BaseModel):
    """Optimizer steps of all jobs. What early exit saves leaves the total, so that the end is where they meet."""

    steps_done: int
    steps_total: int | None = Field(description="Null until a worker has read the data set")


class Samples(BaseModel):
    """Training rows that passed through the model, counted once for each job and epoch."""

    trained: int
    full: int | None = Field(description="What all jobs would train without early exit")
    saved_fraction: float | None = Field(description="Of `full`, what early exits have saved so far")


class Winner(BaseModel):
    """The job with the lowest validation loss among those that kept an adapter."""

    job_id: str
    index: int
    config: JobConfig
    adapter_id: str
    val_loss: float
    step: int


class PlacementResource(BaseModel):
    """Where a running task runs, or an ended one ran last, and what it did there."""

    node: str
    gpus: int = Field(description="That it holds; with max_gpus, it may be more than the task's own")
    since: datetime
    acknowledged_at: datetime | None = Field(description="When the node said that it has the task")
    ended_at: datetime | None
    end_reason: str | None
    tokens_per_second: float | None
    steps: int
    micro_batches: int
    forwards: int = Field(description="Training forwards of the shared base")


class TaskResource(BaseModel):
    """A task. `version` rises with every change and is its ETag."""

    object: Literal["task"] = "task"
    id: str
    name: str | None
    status: TaskStatus
    error: str | None
    base_model: str
    base_revision: str
    spec: dict[str, Any] = Field(description="As it was posted, with its defaults")
    labels: dict[str, str]
    priority: int
    gpus: int
    version: int
    created_at: datetime
    queued_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    archived_at: datetime | None
    base_val_loss: float | None = Field(description="Of the base model alone, over the same rows")
    rows: Rows
    jobs: dict[JobStatus, int] = Field(description="How many jobs stand at each status")
    progress: Progress
    samples: Samples
    winner: Winner | None
    waiting: dict[str, Any] | None = Field(description="Why a queued task waits, its place, its expected start and end")
    desired_status: TaskStatus | None = Field(description="What a running task becomes once its jobs are safe: paused, queued")
    requeue_reason: RequeueReason | None = Field(description="Why it was last taken off a node")
    requeue_detail: str | None = Field(description="The same in words")
    placement: PlacementResource | None


batch_size = sql_cast(Job.config["batch_size"].astext, BigInteger)
_steps_per_epoch = (Task.train_rows + batch_size - 1) // batch_size


def rows_in(steps: Any) -> Any:
    """Rows trained in `steps` steps; the last step of an epoch may be short."""
    return (steps // _steps_per_epoch) * Task.train_rows + func.least((steps % _steps_per_epoch) * batch_size, Task.train_rows)


_ended = Job.status.in_(sorted(JOB_TERMINAL))
_sums = (
    select(
        Job.task_id,
        Job.status,
        func.count().label("count"),
        func.sum(Job.step).label("done"),
        func.sum(case((_ended, Job.step), else_=Job.total_steps)).label("total"),
        func.coalesce(func.sum(rows_in(Job.step)), 0).label("trained"),
        func.sum(rows_in(Job.total_steps)).label("full"),
    )
    .join(Task, Task.id == Job.task_id)
    .where(among_ids(Job.task_id))
    .group_by(Job.task_id, Job.status)
)


def render(session: Session, tasks: Sequence[Task]) -> list[TaskResource]:
    """The tasks' resources, in the same order."""
    ids = [task.id for task in tasks]
    sums: dict[str, list[Row[Any]]] = defaultdict(list)
    for row in session.execute(_sums, {"ids": ids}):
        sums[row.task_id].append(row)
    winners, placements = _winners(session, tasks), _placements(session, tasks)
    return [_render(task, sums[task.id], winners.get(task.id), placements.get(task.id)) for task in tasks]


def render_new(task: Task, jobs: int) -> TaskResource:
    """A task that was made in this transaction, with so many jobs: nothing has happened to it that rows could tell."""
    return _render(task, [_New(JobStatus.PENDING, jobs)], None, None)


@dataclass(frozen=True)
class _New:
    """What `_sums` would say of jobs that nobody has looked at."""

    status: JobStatus
    count: int
    done: int = 0
    total: int | None = None
    trained: int = 0
    full: int | None = None


def _winners(session: Session, tasks: Sequence[Task]) -> dict[str, Winner]:
    ids = [task.winner_job_id for task in tasks if task.winner_job_id is not None]
    if not ids:
        return {}
    found = session.execute(select(Job, Adapter).join(Adapter, Adapter.job_id == Job.id).where(Job.id.in_(ids)))
    return {
        job.task_id: Winner(
            job_id=job.id,
            index=job.index,
            config=JobConfig.model_validate(job.config),
            adapter_id=adapter.id,
            val_loss=adapter.val_loss,
            step=adapter.step,
        )
        for job, adapter in found
    }


def _placements(session: Session, tasks: Sequence[Task]) -> dict[str, PlacementResource]:
    """The newest placement of each task that is not between two."""
    ids = [task.id for task in tasks if task.status == TaskStatus.RUNNING or task.status in TASK_TERMINAL]
    if not ids:
        return {}
    placed = select(Placement, Node.name).join(Node, Node.id == Placement.node_id).where(Placement.task_id.in_(ids))
    return {
        placement.task_id: PlacementResource(
            node=node,
            gpus=len(placement.device_indexes),
            since=placement.created_at,
            acknowledged_at=placement.acknowledged_at,
            ended_at=placement.ended_at,
            end_reason=placement.end_reason,
            tokens_per_second=placement.tokens / placement.train_seconds if placement.train_seconds > 0 else None,
            steps=placement.steps,
            micro_batches=placement.micro_batches,
            forwards=placement.forwards,
        )
        for placement, node in session.execute(placed.order_by(Placement.created_at))  # a later one takes the place
    }


def _render(
    task: Task, sums: Sequence[Row[Any] | _New], winner: Winner | None, placement: PlacementResource | None
) -> TaskResource:
    return TaskResource(
        id=task.id,
        name=task.name,
        status=TaskStatus(task.status),
        error=task.error,
        base_model=task.base_model,
        base_revision=task.base_revision,
        spec=task.spec,
        labels=task.labels,
        priority=task.priority,
        gpus=task.gpus,
        version=task.version,
        created_at=task.created_at,
        queued_at=task.queued_at,
        started_at=task.started_at,
        ended_at=task.ended_at,
        archived_at=task.archived_at,
        base_val_loss=task.base_val_loss,
        rows=Rows(
            train=task.train_rows,
            validation=task.validation_rows,
            truncated=task.truncated_rows,
            skipped=task.skipped_rows,
        ),
        jobs={status: 0 for status in JobStatus} | {JobStatus(row.status): row.count for row in sums},
        progress=Progress(steps_done=sum(row.done for row in sums), steps_total=_known([row.total for row in sums])),
        samples=_count_samples(sums),
        winner=winner,
        waiting=task.waiting,
        desired_status=TaskStatus(task.desired_status) if task.desired_status else None,
        requeue_detail=task.requeue_detail,
        requeue_reason=RequeueReason(task.requeue_reason) if task.requeue_reason else None,
        placement=placement,
    )


def _count_samples(sums: Sequence[Row[Any] | _New]) -> Samples:
    full = _known([row.full for row in sums])
    saved = sum(row.full - row.trained for row in sums if row.status == JobStatus.EXITED and row.full is not None)
    return Samples(
        trained=sum(int(row.trained) for row in sums),
        full=full,
        saved_fraction=float(saved) / full if full else None,
    )


def _known(values: Sequence[Any]) -> int | None:
    """The sum, or None if a part of it is not known."""
    return None if any(value is None for value in values) else sum(int(value) for value in values)
