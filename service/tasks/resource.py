"""Renders tasks as API resources; the number of queries does not depend on how many tasks and jobs there are."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field
from sqlalchemy import ARRAY, Double, String, and_, any_, case, func, literal, select
from sqlalchemy.orm import Session, aliased

from contract.states import JOB_TERMINAL, TASK_TERMINAL, JobStatus, RequeueReason, TaskStatus
from contract.wording.row_words import cut_sentence, overlap_sentence
from service.adapters.models import Adapter, StoredSteps
from service.database.engine import among_ids
from service.fleet.models import PLACED_ON_TYPE, Node, Placement
from service.http.problems import AsMade
from service.tasks.damaged_rows import unread_problems
from service.tasks.job_resource import StoredConfig, counts_by_status
from service.tasks.models import Job, Task
from service.tasks.plan_status import queue_status
from service.tasks.selection import Selection, selection_of
from service.tasks.stored_specs import effective
from service.usage.trained_rows import rows_in


class Rows(BaseModel):
    """How the data set came out at the worker; null until then."""

    train: int | None
    validation: int | None = Field(description="Read by a full evaluation: at the cut after warmup, and at a job's end")
    trend: int | None = Field(default=None, description="Of these, the first, which every other evaluation reads")
    truncated: int | None = Field(description="Longer than max_seq_len, cut; of the rows that are left out, too")
    skipped: int | None = Field(description="Nothing left to learn after the cut, left out")
    overlap: int | None = Field(
        default=None, description="Of the validation rows, those that are also trained on; null: the worker did not count them"
    )

    @property
    def trend_part(self) -> int | None:
        """The trend's rows, where they are not all validation rows."""
        return self.trend if None not in (self.trend, self.validation) and self.trend != self.validation else None

    @property
    def cut_sentence(self) -> str:
        """Empty where no row is known to have lost anything."""
        return cut_sentence(self.truncated, self.skipped)

    @property
    def overlap_sentence(self) -> str:
        """Empty where no validation row is known to be trained on."""
        return overlap_sentence(self.overlap, self.validation)


class Progress(BaseModel):
    """Optimizer steps of all jobs. What early exit saves leaves the total, so that the end is where they meet; what a cancelled
    or failed task did not train stays in it."""

    steps_done: int
    steps_total: int | None = Field(description="Null until a worker has read the data set")


class Samples(BaseModel):
    """Training rows that passed through the model, counted once for each job and epoch."""

    trained: int
    full: int | None = Field(description="What all jobs would train without early exit")
    saved_fraction: float | None = Field(description="Of `full`, what early exits have saved so far")


class Winner(BaseModel):
    """The job that won among those that kept an adapter; the task's `selection` says why, and whether it beats the base."""

    job_id: str
    index: int
    config: StoredConfig
    adapter_id: str
    adapter_deleted_at: datetime | None = Field(description="When its tenant deleted the adapter, if it did")
    val_loss: float
    step: int = Field(description="After which the job's own weights had their lowest validation loss")
    averaged_steps: StoredSteps = Field(description="The steps whose weights the adapter is the mean of; none: those of `step`")


class PlacementResource(BaseModel):
    """Where a running task runs, or an ended one ran last, and what it did there."""

    node: str
    device_type: str | None = Field(default=None, description="Of the GPUs; `cpu`: what is counted as GPUs are CPU slots")
    gpus: int = Field(description="That it holds; with max_gpus, or beside others, it may be more than the task's own")
    beside: int = Field(description="How many other tasks shared these GPUs by the last plan; it pays for its part by tokens")
    slowdown: float | None = Field(description="How many times slower than alone it was of late beside them, as measured")
    since: datetime
    acknowledged_at: datetime | None = Field(description="When the node said that it has the task")
    waits_for: str | None = Field(description="What it cannot go on without, in a sentence: room on the node's disk")
    loading: str | None = Field(description="How far fetching its base from hub or storage, then loading it, is, in a sentence")
    ended_at: datetime | None
    end_reason: str | None
    tokens_per_second: float | None
    steps: int
    micro_batches: int
    forwards: int = Field(description="Training forwards of the shared base")


class TaskResource(BaseModel):
    """A task. `version` rises with every change but of its place and times in the queue; its ETag changes with those too."""

    object: Literal["task"] = "task"
    id: str
    name: str | None
    status: TaskStatus
    error: str | None
    base_model: str
    base_revision: str
    spec: dict[str, Any] = Field(description="As it was posted, with its defaults")
    labels: dict[str, str]
    batch_id: str | None = Field(description="Of the batch that it was posted in")
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
    selection: Selection | None = Field(default=None, description="How the winner was chosen; null before the task has one")
    waiting: dict[str, Any] | None = Field(description="Why a queued task waits, its place, its expected start and end")
    desired_status: TaskStatus | None = Field(description="What a running task becomes once its jobs are safe: paused, queued")
    requeue_reason: RequeueReason | None = Field(description="Why it was last taken off a node")
    requeue_detail: str | None = Field(description="The same in words")
    placement: PlacementResource | None
    problems: AsMade = None


_ended = Job.status == any_(literal(sorted(JOB_TERMINAL), ARRAY(String)))  # `in_` is recompiled at each use
# a job that was stopped with its task: one that failed beside others that went on is done
_stopped = and_(
    Job.status == any_(literal([JobStatus.CANCELLED, JobStatus.FAILED], ARRAY(String))),
    Task.status == any_(literal([TaskStatus.CANCELLED, TaskStatus.FAILED], ARRAY(String))),
)
_SUMS = (
    select(
        Job.task_id,
        Job.status,
        func.count().label("count"),
        func.sum(Job.step).label("done"),
        func.sum(case((and_(_ended, ~_stopped), Job.step), else_=Job.total_steps)).label("total"),
        func.coalesce(func.sum(rows_in(Job.step)), 0).label("trained"),
        func.sum(rows_in(Job.total_steps)).label("full"),
    )
    .join(Task, Task.id == Job.task_id)
    .where(among_ids(Job.task_id))
    .group_by(Job.task_id, Job.status)
)
_WINNERS = (  # columns as Winner names them
    select(
        Job.task_id,
        Job.id.label("job_id"),
        Job.index,
        Job.config,
        Adapter.id.label("adapter_id"),
        Adapter.deleted_at.label("adapter_deleted_at"),
        Adapter.val_loss,
        Adapter.step,
        Adapter.manifest["averaged_steps"].label("averaged_steps"),
    )
    .join(Adapter, Adapter.job_id == Job.id)
    .join(Task, Task.winner_job_id == Job.id)
    .where(among_ids(Task.id))
)
_each = aliased(Placement)
_newest = select(_each.id).where(_each.task_id == Task.id).order_by(_each.created_at.desc()).limit(1)
_PLACEMENTS = (  # columns as PlacementResource names them
    select(
        Placement.task_id,
        Node.name.label("node"),
        PLACED_ON_TYPE.label("device_type"),
        func.cardinality(Placement.device_indexes).label("gpus"),
        Placement.beside,
        Placement.slowdown,
        Placement.created_at.label("since"),
        Placement.acknowledged_at,
        case((Placement.ended_at.is_(None), Placement.waits_for)).label("waits_for"),
        case((Placement.ended_at.is_(None), Placement.loading)).label("loading"),
        Placement.ended_at,
        Placement.end_reason,
        (Placement.tokens / func.nullif(Placement.train_seconds, 0.0, type_=Double)).label("tokens_per_second"),
        Placement.steps,
        Placement.micro_batches,
        Placement.forwards,
    )
    .join(Node, Node.id == Placement.node_id)
    .join(Task, Task.id == Placement.task_id)
    .where(among_ids(Task.id), Placement.id == _newest.scalar_subquery())
)
RELATED_READS = (_SUMS, _WINNERS, _PLACEMENTS)  # for the tasks `ids`, in the order of RelatedRows' parameters
QUEUE = queue_status.OF_TASKS  # follows them


def render(session: Session, tasks: Sequence[Task]) -> list[TaskResource]:
    """The tasks' resources, in the same order."""
    ids = {"ids": [task.id for task in tasks]}
    beside = RelatedRows(*(session.execute(statement, ids) for statement in (*RELATED_READS, QUEUE)))
    return [beside.of(task) for task in tasks]


class RelatedRows:
    """What the tables of jobs, adapters, placements and the plan in force add to the tasks' own rows."""

    def __init__(self, sums: Iterable[Any], winners: Iterable[Any], placements: Iterable[Any], queue: Iterable[Any]) -> None:
        self._sums: dict[str, list[Any]] = defaultdict(list)
        for row in sums:
            self._sums[row.task_id].append(row)
        self._winners = {row.task_id: row for row in winners}
        self._placements = {row.task_id: row for row in placements}
        self.entries = queue_status.entries_of(queue)

    def of(self, task: Any) -> TaskResource:
        """The resource of one of the tasks; `task` is any row with a Task's columns."""
        winner = self._winners.get(task.id) if task.winner_job_id is not None else None
        placed = task.status == TaskStatus.RUNNING or task.status in TASK_TERMINAL  # not while it waits between two placements
        waits = queue_status.waiting_of(task, self.entries)
        return _render(task, self._sums[task.id], winner, self._placements.get(task.id) if placed else None, waits)


def render_new(task: Task, jobs: int) -> TaskResource:
    """Resource of a task with `jobs` jobs that this transaction created: no related rows to query yet."""
    return _render(task, [_New(JobStatus.PENDING, jobs)], None, None, task.waiting)


@dataclass(frozen=True)
class _New:
    """What `_SUMS` would return for newly created jobs."""

    status: JobStatus
    count: int
    done: int = 0
    total: int | None = None
    trained: int = 0
    full: int | None = None


def _render(task: Any, sums: Sequence[Any], winner: Any, placement: Any, waits: dict[str, Any] | None) -> TaskResource:
    return TaskResource(
        id=task.id,
        name=task.name,
        status=TaskStatus(task.status),
        error=task.error,
        base_model=task.base_model,
        base_revision=task.base_revision,
        spec=effective(task),
        labels=task.labels,
        batch_id=task.batch_id,
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
            trend=task.trend_rows,
            truncated=task.truncated_rows,
            skipped=task.skipped_rows,
            overlap=task.overlap_rows,
        ),
        jobs=counts_by_status(sums),
        progress=Progress(steps_done=sum(row.done for row in sums), steps_total=_known([row.total for row in sums])),
        samples=_count_samples(sums),
        winner=(won := Winner.model_validate(winner._asdict()) if winner is not None else None),
        selection=(chosen := selection_of(task)),
        waiting=waits,
        desired_status=TaskStatus(task.desired_status) if task.desired_status else None,
        requeue_detail=task.requeue_detail,
        requeue_reason=RequeueReason(task.requeue_reason) if task.requeue_reason else None,
        placement=PlacementResource.model_validate(placement._asdict()) if placement is not None else None,
        problems=unread_problems(task, chosen, won.config if won is not None else None),
    )


def _count_samples(sums: Sequence[Any]) -> Samples:
    full = _known([row.full for row in sums])
    saved = float(sum(row.full - row.trained for row in sums if row.status == JobStatus.EXITED and row.full is not None))
    return Samples(trained=sum(int(row.trained) for row in sums), full=full, saved_fraction=saved / full if full else None)


def _known(values: Sequence[Any]) -> int | None:
    """The sum, or None if any value is unknown."""
    return None if any(value is None for value in values) else sum(int(value) for value in values)
